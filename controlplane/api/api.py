from ninja import NinjaAPI

api = NinjaAPI(title="Fuseboard", version="1", urls_namespace="api")

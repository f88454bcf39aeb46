# docker build --target controlplane .   web, gateway, worker, beat
# docker build --target pod .            a demo pod: the agent alone, without Django
#
# With --build-arg COMMIT=$(git rev-parse HEAD), the images and `--version` in them name the commit.
#
# Everything is installed from the hashes in requirements/; the images run as a user without rights,
# and on a read-only file system.

FROM python:3.13-slim@sha256:9662417aace5ae7b8e2609cce472b72a8958e134ba372808abe9cc1a0c0125e6 AS python
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1 \
    PYTHONUNBUFFERED=1

FROM python AS wheel
WORKDIR /build
COPY requirements/build.txt requirements/
RUN pip install --require-hashes --requirement requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY agents agents
ARG COMMIT=
RUN test -z "$COMMIT" || echo "$COMMIT" >agents/fuseboard/commit
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .

FROM python AS controlplane-environment
RUN python -m venv /opt/fuseboard
COPY requirements/controlplane.txt requirements/
RUN /opt/fuseboard/bin/pip install --require-hashes --requirement requirements/controlplane.txt
COPY --from=wheel /wheels /wheels
RUN /opt/fuseboard/bin/pip install --no-deps --no-index /wheels/*.whl

FROM python AS pod-environment
RUN python -m venv /opt/fuseboard
COPY requirements/pod.txt requirements/
RUN /opt/fuseboard/bin/pip install --require-hashes --requirement requirements/pod.txt
COPY --from=wheel /wheels /wheels
RUN /opt/fuseboard/bin/pip install --no-deps --no-index /wheels/*.whl

FROM python AS runtime
# A new volume gets the mode of its folder. The server that reads the users of Redis is another user.
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin fuseboard \
    && install --directory --owner fuseboard --mode 0700 /run/fuseboard /var/lib/fuseboard \
    && install --directory --owner fuseboard --mode 0755 /var/lib/redis-users
# TMPDIR: the one place for files of a moment, which docker-compose.yml mounts.
ENV PATH=/opt/fuseboard/bin:$PATH PYTHONDONTWRITEBYTECODE=1 TMPDIR=/tmp
WORKDIR /app
ARG COMMIT=
LABEL org.opencontainers.image.version="0.3.0.dev0" \
      org.opencontainers.image.revision="$COMMIT" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.vendor="The authors of Fuseboard"

FROM runtime AS pod
LABEL org.opencontainers.image.title="Fuseboard demo pod" \
      org.opencontainers.image.description="A service of the demo, with the agent and without Django"
COPY --from=pod-environment /opt/fuseboard /opt/fuseboard
# The demo's programs, and nothing of the control plane they do not import.
COPY controlplane/__init__.py controlplane/
COPY tools/__init__.py tools/
COPY tools/demo tools/demo
RUN python -m compileall -q .
USER fuseboard
EXPOSE 8080

FROM runtime AS controlplane
LABEL org.opencontainers.image.title="Fuseboard control plane" \
      org.opencontainers.image.description="Web, gateway, worker and beat of Fuseboard"
COPY --from=controlplane-environment /opt/fuseboard /opt/fuseboard
COPY manage.py ./
COPY controlplane controlplane
COPY dashboard dashboard
COPY tools/__init__.py tools/
COPY tools/demo tools/demo
COPY docs/runbooks docs/runbooks
ARG COMMIT=
RUN test -z "$COMMIT" || echo "$COMMIT" >controlplane/commit
# Nothing in the image can be written, so each start would compile the code again.
RUN python -m compileall -q .
# No secret is needed to collect files, and none is left in the image.
RUN FUSEBOARD_SECRET_KEY=only-while-collecting python manage.py collectstatic --noinput --verbosity 0
USER fuseboard
EXPOSE 8000 8001

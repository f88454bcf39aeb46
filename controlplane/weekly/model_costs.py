"""Three lines of a weekly summary: what calls to models cost, which model, and which tenant, cost most."""

from collections.abc import Iterator
from datetime import timedelta

from controlplane.ledger.reading import Costs, Sums, Wanted, read_costs
from controlplane.phrases import count, percent, usd
from controlplane.policies.models import Tenant
from controlplane.weekly.sections import Line, Opens, Section
from controlplane.weekly.week_figures import Week


def model_costs(week: Week) -> tuple[Section, ...]:
    """No section for a week without a call to a model."""
    by_model, by_tenant = _costs(week, "model"), _costs(week, "tenant")
    total = by_model.total
    if not total.calls:
        return ()
    before = _costs(week, "day", weeks=1).total
    spent = [f"{usd(total.micro_usd)} for {count(total.calls, 'call', grouped=True)}"]
    if before.calls:
        spent.append(f"{usd(before.micro_usd)} in the week before")
    lines = [
        Line(
            name="All models",
            found="; ".join(part for part in (", ".join(spent), ", ".join(_of_it(total))) if part),
            opens=Opens.COSTS,
        )
    ]
    model, tenant = max(by_model.lines, key=lambda line: line.micro_usd), by_tenant.lines[0]
    unpriced = sum(line.unpriced > 0 for line in by_model.lines)
    lines.append(
        Line(
            name=model.name or "other models",
            found=f"the model that cost most: {usd(model.micro_usd)},"
            f" {percent(model.micro_usd / (total.micro_usd or 1))} of all",
            suggestion=f"{count(unpriced, 'model')} had no price: add it." if unpriced else "",
            opens=Opens.COSTS,
        )
    )
    known = Tenant.objects.filter(environment=week.environment, key=tenant.name, deleted=False).exists()
    lines.append(
        Line(
            name=tenant.name if known else "a tenant that is not registered" if tenant.name else "no tenant",
            found=f"the tenant that cost most: {usd(tenant.micro_usd)},"
            f" {percent(tenant.micro_usd / (total.micro_usd or 1))} of all",
            opens=Opens.TENANT,
            key=tenant.name if known else "",
        )
    )
    return (
        Section(title="Costs of models", lines=tuple(lines), known="From the ledger, in UTC.", nothing=""),
    )


def _of_it(total: Sums) -> Iterator[str]:
    """Without a price of cached input, nothing is known of what caching saved."""
    if total.saved_micro_usd:
        yield f"caching saved {usd(total.saved_micro_usd)}"
    if total.wasted_micro_usd:
        yield f"{usd(total.wasted_micro_usd)} was wasted"


def _costs(week: Week, by: str, *, weeks: int = 0) -> Costs:
    since = week.start.date() - timedelta(weeks=weeks)
    wanted = Wanted(by=by, since=since, until=since + timedelta(days=6))
    return read_costs(week.environment, wanted, most=1_000 if by == "model" else 1)

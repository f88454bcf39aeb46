"""The example of a policy with models and prices."""

from fuseboard.contract.models import Model, Price
from fuseboard.contract.policy import Dependency, Policy, Tier

#: Two models of a pool, one of them with a price that has begun and one to come.
PRICED_POLICY = Policy(
    environment="production",
    default_tier="free",
    tiers=(Tier(name="free"),),
    dependencies=(Dependency(name="openai"),),
    models=(
        Model(
            name="gpt-5.2",
            aliases=("assistant-large", "models/gpt-5.2"),
            pool="openai",
            prices=(
                Price(
                    starts_at_s=1_764_547_200,
                    input=2_500_000,
                    cached=250_000,
                    written=2_500_000,
                    output=10_000_000,
                    batch_percent=50,
                    long_above=200_000,
                    long_input=5_000_000,
                    long_cached=500_000,
                    long_written=5_000_000,
                    long_output=15_000_000,
                ),
                Price(starts_at_s=1_772_323_200, input=1, cached=0, written=1, output=2),
            ),
        ),
        Model(name="gpt-5.2-mini"),
    ),
)

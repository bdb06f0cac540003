"""The contract suite: what every plugin is held to.

One class a kind, of which a plugin's tests derive, overriding one fixture:

    ModelFamilyContract   card: a card whose weights are here
    InterceptorContract   spec: its InterceptorSpec
    ObserverContract      spec: its ObserverSpec
    AttentionContract     spec: its AttentionBackendSpec
    TransportContract     spec: its TransportSpec

The promises themselves are functions in `family`, `hooks`, `kept`, `attention` and `transport`, which raise
`ContractError`.
"""

from fastvideo_testing.contract.base import ContractError
from fastvideo_testing.contract.suite import (
    AttentionContract,
    InterceptorContract,
    ModelFamilyContract,
    ObserverContract,
    TransportContract,
)

__all__ = [
    "AttentionContract",
    "ContractError",
    "InterceptorContract",
    "ModelFamilyContract",
    "ObserverContract",
    "TransportContract",
]

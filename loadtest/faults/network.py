"""The network before each service: cut, black-holed, delayed, half open, throttled, and mended under traffic."""

from __future__ import annotations

from typing import Final, NamedTuple

from loadtest.faults.fault import Scene, fault
from loadtest.faults.tcp_proxy import BLACK_HOLE, CLIENTS_ARE_MUTE, CUT, PASS, SERVER_IS_MUTE, Link
from loadtest.faults.world import Service, WorldPlan


class Break(NamedTuple):
    """A way to break the network: for so long, and so soon after it is mended mail must flow for everybody."""

    name: str
    link: Link
    lasts_s: float
    recover_s_max: float
    about: str


_PLAN: Final = WorldPlan(proxied=frozenset(Service))
_NAMES: Final = {
    Service.GATEWAY: "between clients and all gateways",
    Service.POSTGRES: "before PostgreSQL",
    Service.REDIS: "before Valkey",
}
# Long enough for what is meant to notice it: a client's answer (10 s), a gateway's call to Valkey (10 s).
BREAKS: Final = (
    Break("cut", CUT, 4.0, 15.0, "Every connection {} is reset, and newcomers are, for a while."),
    Break("black-hole", BLACK_HOLE, 13.0, 20.0, "Nothing passes {}, in either direction, and nobody is told."),
    Break("mute-service", SERVER_IS_MUTE, 13.0, 20.0, "Half open {}: requests arrive, answers and closes do not."),
    Break("mute-clients", CLIENTS_ARE_MUTE, 13.0, 20.0, "Half open {}: requests do not arrive, what is pushed does."),
    Break("delay", Link(delay_s=0.3), 6.0, 15.0, "Every byte {} comes 0.3 s late, in each direction."),
    Break("throttle", Link(bytes_per_s=20_000), 6.0, 20.0, "Each connection {} carries 20 kB a second each way."),
)


def _register(service: Service, way: Break) -> None:
    async def act(scene: Scene) -> None:
        await scene.any_moment()
        proxies = scene.world.proxies[service]
        for proxy in proxies:
            proxy.become(way.link)
        await scene.for_s(way.lasts_s)
        for proxy in proxies:
            proxy.become(PASS)

    act.__doc__ = way.about.format(_NAMES[service])
    fault(f"{service}-{way.name}", needs=(service,), plan=_PLAN, recover_s_max=way.recover_s_max)(act)


for _service in Service:
    for _way in BREAKS:
        _register(_service, _way)


@fault("postgres-black-hole-long", needs=(Service.POSTGRES,), plan=_PLAN, recover_s_max=20.0)
async def postgres_black_hole_long(scene: Scene) -> None:
    """The same for longer than a database call may take: callers are told UNAVAILABLE, outcome unknown, and repeat."""
    proxy = scene.world.proxy(Service.POSTGRES)
    before = [await gateway.metric("errors_total") for gateway in scene.world.gateways]
    proxy.become(BLACK_HOLE)
    await scene.for_s(40.0)
    for gateway, errors in zip(scene.world.gateways, before, strict=True):
        scene.check(not await gateway.is_ready(), f"{gateway.name} says that it is ready without its database")
        scene.check(await gateway.metric("errors_total") > errors, f"{gateway.name} told nobody")
    proxy.become(PASS)

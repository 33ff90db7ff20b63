"""What routing goes by: what gateways know of each other, of workers without events and of their speed; sessions."""

from __future__ import annotations

from panels import POOL, Panel, rate, series

ROUTING_PANELS: list[Panel] = [
    series(
        "Bookings of all gateways known",
        "short",
        "0 when a gateway routes by its own bookings and the workers' reports alone.",
        (f"min by (pool) (warmroute_gateway_flight_shared{{{POOL}}})", "{{pool}}"),
    ),
    series(
        "Other gateways known",
        "short",
        "By the gateway, or process, that knows fewest; should equal the number of the others.",
        (f"min by (pool) (warmroute_gateway_flight_gateways{{{POOL}}})", "{{pool}} known"),
        (f"count by (pool) (warmroute_gateway_flight_gateways{{{POOL}}}) - 1", "{{pool}} others"),
    ),
    series(
        "Messages between gateways",
        "cps",
        "About requests in flight, by outcome. Of those received `own` is how a gateway sees that its messages pass; "
        "`gap` is harmless once in a while; `refused` and `malformed` should not be.",
        (rate("warmroute_gateway_flight_sent_total", "outcome"), "sent: {{outcome}}"),
        (rate("warmroute_gateway_flight_received_total", "outcome"), "received: {{outcome}}"),
    ),
    series(
        "Workers in approximate mode",
        "short",
        "They publish no events: what they hold is taken from what each gateway routed to them. Every gateway sees all "
        "of them: the largest count.",
        (f"max by (pool) (warmroute_gateway_approximate_workers{{{POOL}}})", "{{pool}}"),
    ),
    series(
        "Workers whose rate is learned",
        "short",
        "With half of the pool's, costs count seconds. Each gateway learns by itself: the one that knows fewest.",
        (f"min by (pool) (warmroute_gateway_rated_workers{{{POOL}}})", "{{pool}}"),
    ),
    series(
        "Requests of sessions",
        "cps",
        "Picks for requests that named a session: stayed on the worker that it used last, moved for load or for what "
        "another holds, new.",
        (rate("warmroute_gateway_session_requests_total", "outcome"), "{{outcome}}"),
    ),
]

//! Kinds of packets, as the program counts them.

/// Kinds of packets, in the order of `enum evk_outcome`: a name for scripts, and the meaning of each.
pub const OUTCOMES: [(&str, &str); 23] = [
    ("to_member", "forwarded to members"),
    ("to_client", "forwarded to clients"),
    (
        "proxied_strategy",
        "left to the proxy: connections of groups whose strategy cannot decide in the kernel",
    ),
    (
        "proxied_full",
        "left to the proxy: connections while no member may get one",
    ),
    (
        "proxied_table",
        "left to the proxy: connections for which the table had no place",
    ),
    (
        "proxied_route",
        "left to the proxy: connections to a member without a route",
    ),
    (
        "odd",
        "left to the system: TCP fragments, fragments of datagrams whose first one is not known, packets with IP options or \
         extension headers, packets of wrong lengths, and packets of several datagrams that are sessions of their own",
    ),
    ("dropped", "dropped: packets of connections without a route"),
    (
        "retried",
        "SYNs sent to another member, as the one before has refused or not answered",
    ),
    (
        "stray_reset",
        "RSTs with a wrong sequence number: sent on, and the connection continues",
    ),
    (
        "lost_event",
        "forwarded without an event for the balancer, as the buffer was full: a line of the access log may be missing",
    ),
    (
        "too_large",
        "left to the system, which tells the member: packets that are too large for the way to the client",
    ),
    (
        "icmp_error",
        "ICMP errors about packets of connections, sent to the client or the member",
    ),
    (
        "proxied_rate",
        "left to the proxy: connections of a source with too many that are not confirmed",
    ),
    (
        "proxied_ports",
        "left to the proxy: connections with `return_path = \"nat\"` for which no port towards the member was free",
    ),
    (
        "by_xdp",
        "of those forwarded: by native XDP, before the system has looked at the packet",
    ),
    (
        "proxied_remote",
        "left to the proxy: connections with `return_path = \"direct\"` to a member behind a router",
    ),
    (
        "proxied_session",
        "left to the proxy: datagrams of clients whose sessions the proxy has",
    ),
    (
        "by_row",
        "of connections that another balancer has begun: sent to a member of the connection's row",
    ),
    (
        "by_connection_id",
        "of those forwarded to members: first datagrams of clients of QUIC whose address has changed, sent to the member \
         of the connection id",
    ),
    (
        "lost_connection_id",
        "connection ids of QUIC for which the table had no place: a client whose address changes may get another member",
    ),
    (
        "late_answer",
        "dropped: answers to a single datagram that has had an answer, or whose `answer_timeout` was over",
    ),
    (
        "proxied_limit",
        "left to the proxy: connections above `max_connections` or `limits` of the rule",
    ),
];

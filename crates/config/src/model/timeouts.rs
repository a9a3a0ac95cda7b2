//! Time limits of rules.

use std::time::Duration;

use crate::schema::key::{DAY, HOUR, millis, secs, section};

section! {
    /// Time limits of a rule.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Timeouts {}
    keys TIMEOUTS {
        /// Time limit for connecting to a member. After the limit another member is tried. Lower the limit if
        /// your members are near.
        // Long enough for one lost SYN (sent again after 1 s, RFC 6298).
        connect "connection_timeout": Duration [Time(millis(1), secs(600))] = secs(2); r#""500ms""#,
        /// TCP, upgraded HTTP connections (WebSocket), and FTP (control and data): time without a byte in
        /// either direction after which the connection is closed. UDP: time without a datagram after which a
        /// session ends, 30 s by default. Raise the time if your clients are silent for long.
        idle "idle_timeout": Duration [Time(millis(1), DAY)] = secs(600); r#""1h""#,
        /// Time limit for a request or connection which waits because all members are at their connection
        /// limit.
        queue "queue_timeout": Duration [Time(secs(0), secs(600))] = secs(2); r#""250ms""#,
        /// TCP with `sni`: time limit for a client's first message, from the connection on.
        sni "sni_timeout": Duration [Time(millis(1), secs(600))] = secs(10); r#""5s""#,
        /// With `accept_proxy`: time limit for the PROXY header, from the connection on.
        accept_proxy "accept_proxy_timeout": Duration [Time(millis(1), secs(600))] = secs(5); r#""1s""#,
        /// HTTP: time limit from the first byte of a request head to its end.
        header "header_timeout": Duration [Time(millis(1), HOUR)] = secs(10); r#""5s""#,
        /// HTTP: time for which a client connection is kept open without a request.
        keep_alive "keep_alive_timeout": Duration [Time(millis(1), DAY)] = secs(60); r#""15s""#,
        /// HTTP: longest pause of a client while sending a request body or receiving a response.
        body "body_timeout": Duration [Time(millis(1), DAY)] = secs(30); r#""10s""#,
        /// HTTP: time limit from the end of the request to the response head, and for the longest pause of the
        /// member within the response. Interim responses (1xx) do not extend the time. If the client expects a
        /// 100 (Continue), the time starts after the request head. Raise the limit if your members compute for
        /// longer.
        response "response_timeout": Duration [Time(millis(1), DAY)] = secs(60); r#""2m""#,
        /// HTTP: [time limit of a whole request](routing.md#time-limits), from the end of the request head to the end
        /// of the response, with the queue and all retries. When the time is over, the client gets 504, or 408 if the
        /// request is not complete yet; if the response has begun, the response is cut. Upgraded connections (WebSocket) end
        /// the limit. By default a request has no such limit.
        request "request_timeout": Option<Duration> [Time(millis(1), DAY)] = None; r#""30s""#,
        /// HTTP: [time limit of one attempt](routing.md#time-limits) at a member, from the connecting to the end of
        /// the response. An attempt without a response head by then is retried as after `response_timeout`. If the response has
        /// begun, the response is cut. By default an attempt has no such limit.
        attempt "attempt_timeout": Option<Duration> [Time(millis(1), DAY)] = None; r#""5s""#,
    }
}

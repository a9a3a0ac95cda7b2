//! Prints what the HTTP/1.x codec costs per head, in nanoseconds.
//!
//! `cargo run --release -p evenkeel-proxy --example head_cost`

use std::hint::black_box;
use std::time::Instant;

use evenkeel_manager::config::HttpOptions;
use evenkeel_proxy::http1::forward::{Client, write_request, write_response};
use evenkeel_proxy::http1::{
    Fields, FramingFacts, Hop, Limits, ParseOutcome, RequestHead, ResponseHead, Version,
};

const REQUEST: &[u8] = b"GET /api/v1/items?page=2 HTTP/1.1\r\n\
    Host: www.example.org\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n\
    Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n\
    Accept-Encoding: gzip, deflate, br\r\n\
    Connection: keep-alive\r\n\
    Cookie: session=0123456789abcdef0123456789abcdef\r\n\r\n";

const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\n\
    Server: nginx/1.22.1\r\n\
    Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
    Content-Type: text/html\r\n\
    Content-Length: 612\r\n\
    Connection: keep-alive\r\n\
    ETag: \"62d6ba29-264\"\r\n\r\n";

const LIMITS: Limits = Limits {
    max_bytes: 16 * 1024,
    max_fields: 100,
};

fn main() {
    let options = HttpOptions::default();
    let client = std::net::IpAddr::from([192, 0, 2, 7]);
    let hop = Hop::new(&options, client, "http", "192.0.2.1:80");
    let mut out = Vec::with_capacity(1024);
    measure("httparse alone, request", || {
        let mut headers = [httparse::EMPTY_HEADER; 16];
        let mut request = httparse::Request::new(&mut headers);
        black_box(request.parse(black_box(REQUEST)).is_ok());
    });
    measure("parse a request", || {
        let mut fields = Fields::new();
        let parsed = RequestHead::parse(black_box(REQUEST), LIMITS, &mut fields);
        black_box(parsed.is_ok());
    });
    measure("parse and write a request", || {
        let mut fields = Fields::new();
        if let Ok(ParseOutcome::Head(head)) =
            RequestHead::parse(black_box(REQUEST), LIMITS, &mut fields)
        {
            out.clear();
            write_request(&head.request, &hop, &mut out);
            black_box(&out);
        }
    });
    let asked = FramingFacts {
        head: false,
        upgrade: false,
    };
    let client = Client {
        version: Version::Http11,
        keep_alive: true,
    };
    measure("parse and write a response", || {
        let mut fields = Fields::new();
        if let Ok(ParseOutcome::Head(head)) =
            ResponseHead::parse(black_box(RESPONSE), LIMITS, asked, &mut fields)
        {
            out.clear();
            black_box(write_response(&head, client, &mut out));
        }
    });
}

/// Best of many short rounds: the machine may have other things to do.
fn measure(what: &str, mut run: impl FnMut()) {
    const TIMES: u32 = 500;
    let round = |run: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..TIMES).for_each(|_| run());
        start.elapsed() / TIMES
    };
    let best = (0..4000).map(|_| round(&mut run)).min().unwrap_or_default();
    println!("{what}: {} ns", best.as_nanos());
}

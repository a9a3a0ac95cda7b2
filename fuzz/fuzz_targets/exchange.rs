//! Whole exchanges: any bytes from a client and from a member, cut into pieces and ended
//! where the fuzzer likes, through a real proxy on loopback. Readers of our own, which share
//! no code with the proxy, look at both sides: what the member gets are requests of the
//! client, whole and in order, and what the client gets are answers to its requests.
//!
//! The input is a script of lines that end with `0xFF`. A line that begins with `>` is written by the client, those of
//! the member are in [`member`].
//!
//! When all is written the client ends its side, and reads on until the proxy does.
#![no_main]

mod member;

use std::borrow::Cow;

use libfuzzer_sys::fuzz_target;
use member::{Answers, Message, Read, Reply, Served, pause, read_answer, read_request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fuzz_target!(|input: &[u8]| {
    let script = Script::of(input);
    let sent: Vec<u8> = script.client.concat();
    // HTTP/2 begins so; `http2_exchange` is about that.
    if sent.starts_with(b"PRI * HTTP/2.0") {
        return;
    }
    let client = async |stream| ask(stream, script.client).await;
    let (got, served) = member::run(script.answers, client);
    compare(&sent, &got, &served);
});

/// What both sides do.
struct Script {
    client: Vec<Vec<u8>>,
    answers: Vec<Reply>,
}

impl Script {
    fn of(input: &[u8]) -> Script {
        let (mut client, mut answers) = (Vec::new(), Answers::default());
        for line in input.split(|&byte| byte == 0xFF).take(64) {
            match line {
                [b'>', piece @ ..] => client.push(piece.to_vec()),
                line => answers.add(line),
            }
        }
        Script {
            client,
            answers: answers.end(),
        }
    }
}

/// The client: what it got.
async fn ask(stream: TcpStream, pieces: Vec<Vec<u8>>) -> Vec<u8> {
    let (mut read, mut write) = stream.into_split();
    let writing = tokio::task::spawn_local(async move {
        for piece in pieces {
            if write.write_all(&piece).await.is_err() {
                return;
            }
            pause().await;
        }
        let _ = write.shutdown().await;
    });
    let mut got = Vec::new();
    // A reset is how a connection ends, too.
    while let Ok(1..) = read.read_buf(&mut got).await {}
    writing.abort();
    got
}

/// The oracle.
fn compare(sent: &[u8], got: &[u8], served: &[Served]) {
    // What the client asked, as far as a strict reader understands it.
    let mut asked = Vec::new();
    let mut rest = sent;
    let mut unclear = false;
    loop {
        match read_request(rest) {
            Read::Message(request, length) => {
                rest = &rest[length..];
                let tunnel = request.tunnel;
                asked.push(request);
                if tunnel {
                    unclear = true;
                    break;
                }
            }
            // What the proxy reads before it finds the fault may have gone to the member.
            Read::Head(request, _) | Read::Broken(request, _) => {
                asked.push(request);
                break;
            }
            Read::Partial | Read::Bad(_) => break,
        }
    }
    let refused = rest.strip_prefix(b"\r\n").unwrap_or(rest);

    // Requests reach the member in order, none twice but after a failure, none made up.
    let mut answers: Vec<Vec<&Served>> = asked.iter().map(|_| Vec::new()).collect();
    let mut last = 0;
    for served in served {
        let request = &served.request;
        let is_of = |index: &usize| {
            asked.get(*index).is_some_and(|asked| {
                asked.line.0 == request.line.0
                    && path(&asked.line.1) == path(&request.line.1)
                    && match request.complete {
                        true => asked.complete && asked.body == request.body,
                        false => asked.body.starts_with(&request.body),
                    }
            })
        };
        let Some(index) = (last..asked.len()).find(is_of) else {
            assert!(
                unclear,
                "nobody asked for {request:?}; the client sent {}",
                sent.escape_ascii()
            );
            return;
        };
        last = index;
        // Of requests that are equal nobody can tell which one got this far.
        for index in (index..asked.len()).filter(is_of) {
            answers[index].push(served);
        }
    }

    // Answers reach the client in order, whole or cut with the connection.
    let mut rest = got;
    let mut late = false;
    for (request, candidates) in asked.iter().zip(&answers) {
        if rest.is_empty() {
            return;
        }
        let (answer, length) = match read_answer(rest, request, true) {
            Read::Message(answer, length) | Read::Head(answer, length) => (answer, length),
            // Cut in the head, or only interim answers.
            Read::Partial => return,
            Read::Broken(_, why) | Read::Bad(why) => panic!("{why}: {}", got.escape_ascii()),
        };
        let is_theirs = candidates.iter().any(|served| {
            match read_answer(&served.answer, request, served.closed) {
                Read::Message(theirs, _) | Read::Head(theirs, _) | Read::Broken(theirs, _) => {
                    theirs.line == answer.line && theirs.body.starts_with(&answer.body)
                }
                Read::Partial | Read::Bad(_) => false,
            }
        });
        late |= candidates.iter().any(|served| served.late);
        let is_ours = matches!(
            &*answer.line.0,
            "400"
                | "404"
                | "408"
                | "413"
                | "414"
                | "417"
                | "429"
                | "431"
                | "501"
                | "502"
                | "503"
                | "504"
                | "505"
        );
        assert!(
            is_theirs || is_ours || late,
            "{answer:?} is no answer to {request:?}; the client got {}",
            got.escape_ascii()
        );
        if answer.tunnel || !answer.complete {
            return;
        }
        rest = &rest[length..];
    }
    // Something unreadable was refused with one answer more.
    if rest.is_empty() || unclear {
        return;
    }
    let method = match refused.starts_with(b"HEAD ") {
        true => "HEAD",
        false => "GET",
    };
    let nobody = Message {
        line: (method.into(), "/".into()),
        body: Vec::new(),
        complete: true,
        tunnel: false,
    };
    match read_answer(rest, &nobody, true) {
        Read::Message(answer, length) => {
            let status: u16 = answer.line.0.parse().unwrap_or_default();
            assert!(status >= 400, "an answer that nobody asked for: {answer:?}");
            assert_eq!(rest.len(), length, "{}", got.escape_ascii());
        }
        Read::Head(..) | Read::Partial => {}
        Read::Broken(_, why) | Read::Bad(why) => panic!("{why}: {}", got.escape_ascii()),
    }
}

/// A target as the origin form has it.
fn path(target: &str) -> Cow<'_, str> {
    let Some((scheme, rest)) = target.split_once("://") else {
        return target.into();
    };
    if !scheme.eq_ignore_ascii_case("http") {
        return target.into();
    }
    match rest.find(['/', '?']).map_or("", |at| &rest[at..]) {
        path if path.starts_with('/') => path.into(),
        query => format!("/{query}").into(),
    }
}

/// Connections that still end in the proxy's threads look like leaks between two runs.
#[unsafe(no_mangle)]
extern "C" fn __lsan_is_turned_off() -> i32 {
    1
}

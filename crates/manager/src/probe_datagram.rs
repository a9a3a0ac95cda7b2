//! Checks of a member by datagrams: a text or bytes with an expected answer, or a DNS query.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use evenkeel_core::address::Address;
use tokio::io::Interest;
use tokio::net::UdpSocket;

use crate::config::{HealthCheck, HealthCheckKind};

/// Longest answer, in bytes.
const MAX_ANSWER: usize = 65_535;

/// Length of the header of a DNS message, in bytes.
const DNS_HEADER: usize = 12;

/// Reason why a check by datagrams has failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DatagramError {
    #[error("no answer: {0}")]
    Io(#[from] io::Error),
    #[error("the answer does not contain what is expected")]
    WrongAnswer,
    #[error("the DNS server answers with the error code {0} (RCODE)")]
    Dns(u8),
    #[error("a Unix socket takes no datagrams of a health check")]
    Unix,
}

impl DatagramError {
    /// True if the member certainly does not work: nobody has the port, or the answer says so.
    pub(crate) fn is_certain(&self) -> bool {
        match self {
            DatagramError::Io(error) => error.kind() == io::ErrorKind::ConnectionRefused,
            DatagramError::WrongAnswer | DatagramError::Dns(_) | DatagramError::Unix => true,
        }
    }
}

/// Sends the datagram of a check, and judges the answer.
pub(crate) async fn check_by_datagram(
    address: &Address,
    check: &HealthCheck,
) -> Result<(), DatagramError> {
    let Some(address) = address.socket() else {
        return Err(DatagramError::Unix);
    };
    let local: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(local).await?;
    socket.connect(address).await?;
    let id = fastrand::u16(..);
    let question = match check.kind {
        HealthCheckKind::Dns => write_query(id, check),
        _ => check.datagram(),
    };
    let expected = check.expected_bytes();
    socket.send(&question).await?;
    let mut answer = Vec::with_capacity(MAX_ANSWER);
    loop {
        answer.clear();
        // An ICMP error says that nobody has the port. It makes no socket readable.
        let ready = socket.ready(Interest::READABLE | Interest::ERROR).await?;
        if ready.is_error()
            && let Some(error) = socket.take_error()?
        {
            return Err(error.into());
        }
        socket.recv_buf(&mut answer).await?;
        match check.kind {
            HealthCheckKind::Dns => {
                if let Some(result) = judge_dns(&answer, id) {
                    return result;
                }
            }
            _ if contains(&answer, &expected) => return Ok(()),
            // A wrong answer is an answer: the check need not wait for its time limit.
            _ => return Err(DatagramError::WrongAnswer),
        }
    }
}

/// True if `part` is in `bytes`; nothing is in all bytes.
fn contains(bytes: &[u8], part: &[u8]) -> bool {
    part.is_empty() || bytes.windows(part.len()).any(|window| window == part)
}

/// Writes a DNS query with recursion desired, for the name of the check (RFC 1035, 4.1).
fn write_query(id: u16, check: &HealthCheck) -> Vec<u8> {
    let name = check.query.as_deref().unwrap_or(".");
    let mut query = Vec::with_capacity(DNS_HEADER + name.len() + 6);
    query.extend(id.to_be_bytes());
    query.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.').filter(|label| !label.is_empty()) {
        // The configuration has no label above 63 bytes.
        query.push(label.len().min(63) as u8);
        query.extend(label.as_bytes());
    }
    query.push(0);
    query.extend((check.query_type as u16).to_be_bytes());
    query.extend([0, 1]);
    query
}

/// Judges a datagram as the answer to query `id`; `None` if the datagram is no such answer.
fn judge_dns(answer: &[u8], id: u16) -> Option<Result<(), DatagramError>> {
    let header = answer.first_chunk::<DNS_HEADER>()?;
    let [high, low, flags, codes, ..] = *header;
    let is_answer = flags & 0x80 != 0;
    if !is_answer || u16::from_be_bytes([high, low]) != id {
        return None;
    }
    Some(match codes & 0xf {
        0 => Ok(()),
        code => Err(DatagramError::Dns(code)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::QueryType;

    fn udp(send: &str, expect: Option<&str>) -> HealthCheck {
        HealthCheck {
            send: Some(send.into()),
            expect: expect.map(str::to_owned),
            ..HealthCheck::new(HealthCheckKind::Udp)
        }
    }

    /// Answers one datagram with `answer` of it.
    async fn answer_once(socket: &UdpSocket, answer: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
        let mut question = vec![0; 600];
        let (len, from) = socket.recv_from(&mut question).await.unwrap();
        question.truncate(len);
        socket.send_to(&answer(&question), from).await.unwrap();
        question
    }

    async fn member() -> (UdpSocket, Address) {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        (socket, Address::Ip(address))
    }

    #[tokio::test]
    async fn an_answer_must_contain_what_is_expected() {
        let (socket, address) = member().await;
        for (expect, passes) in [(None, true), (Some("on"), true), (Some("of"), false)] {
            let check = udp("ping", expect);
            let pong = answer_once(&socket, |_| b"pong".to_vec());
            let (result, asked) = tokio::join!(check_by_datagram(&address, &check), pong);
            assert_eq!(asked, b"ping");
            assert_eq!(result.is_ok(), passes, "{expect:?}: {result:?}");
        }
    }

    #[tokio::test]
    async fn a_port_that_nobody_has_certainly_fails() {
        let (socket, address) = member().await;
        drop(socket);
        let result = check_by_datagram(&address, &udp("ping", None)).await;
        assert!(result.unwrap_err().is_certain());
    }

    #[tokio::test]
    async fn a_dns_query_is_well_formed_and_its_code_counts() {
        let (socket, address) = member().await;
        let check = HealthCheck {
            query: Some("ab.example.".into()),
            query_type: QueryType::Aaaa,
            ..HealthCheck::new(HealthCheckKind::Dns)
        };
        for (code, passes) in [(0, true), (2, false), (5, false)] {
            let reply = answer_once(&socket, |question| {
                let mut answer = question.to_vec();
                answer[2] |= 0x80;
                answer[3] = 0x80 | code;
                answer
            });
            let (result, asked) = tokio::join!(check_by_datagram(&address, &check), reply);
            assert_eq!(
                asked[2..],
                *b"\x01\0\0\x01\0\0\0\0\0\0\x02ab\x07example\0\0\x1c\0\x01"
            );
            assert_eq!(result.is_ok(), passes, "{code}: {result:?}");
        }
    }

    #[test]
    fn foreign_datagrams_are_no_dns_answers() {
        for datagram in [
            &b""[..],
            b"\0\x07\x81\x80",
            b"\0\x08\x81\x80\0\0\0\0\0\0\0\0",
        ] {
            assert!(judge_dns(datagram, 7).is_none(), "{datagram:?}");
        }
        // A question is none either.
        assert!(judge_dns(b"\0\x07\x01\0\0\0\0\0\0\0\0\0", 7).is_none());
        assert!(judge_dns(b"\0\x07\x81\x80\0\0\0\0\0\0\0\0", 7).is_some_and(|r| r.is_ok()));
    }
}

//! Last words of a session to its client.

use std::pin::Pin;
use std::task::{Poll, ready};
use std::time::Duration;

use evenkeel_wire::ftp::Refusal;
use tokio::io::{AsyncRead, ReadBuf};

use super::{Control, Problem, READ_BYTES};
use crate::access::End;
use crate::ftp::send::send_last_line;
use crate::io::Io;

/// Time that a refused client may take to read the reason.
const LINGER: Duration = Duration::from_secs(1);

/// Most bytes of such a client that are read meanwhile: closing with unread ones would take the
/// reason away from it.
const MAX_LINGERING: usize = 256 * 1024;

impl Control<'_> {
    /// The last words to a client.
    pub(super) async fn send_last_words(&mut self, client: &mut Io, end: End) -> End {
        let text = match end {
            End::Complete if self.server_ended => {
                // The last bytes of a transfer may be on their way to a client that reads slowly.
                self.drain_data().await;
                return end;
            }
            End::Alert => "421 The server has much to do: connect again",
            End::ClientTimeout => "421 Nothing was sent for too long",
            End::MemberTimeout => "421 The server does not answer",
            End::Member => "421 The server has closed the connection",
            End::Terminated => "421 The service ends: connect again later",
            _ => return end,
        };
        self.say_farewell(client, text);
        end
    }

    fn say_farewell(&mut self, client: &mut Io, text: &str) {
        let mut all = std::mem::take(&mut self.out.client);
        all.extend_from_slice(text.as_bytes());
        send_last_line(client, all);
    }

    /// Tells the client why the session ends here, and counts it.
    pub(super) async fn refuse_session(&mut self, client: &mut Io, problem: Problem) -> End {
        match problem {
            Problem::Protocol(refusal) => self.count_refusal(refusal),
            Problem::ServerLine => self.count_refusal(Refusal::Reply),
            Problem::NoPort | Problem::Exhausted(_) => {}
        }
        let (text, end) = match problem {
            Problem::Protocol(Refusal::LongLine) => ("421 The line is too long", End::Client),
            Problem::Protocol(Refusal::Malformed) => ("421 That is no command", End::Client),
            Problem::Protocol(Refusal::Bounce) => (
                "421 Only your own address and ports from 1024 on: use PASV or EPSV",
                End::Client,
            ),
            Problem::Protocol(Refusal::Reply) | Problem::ServerLine => {
                ("421 The server's reply is not understood", End::Member)
            }
            Problem::NoPort => {
                self.session.service.metrics.ftp_no_port.add(1);
                (
                    "421 No port is free for a data connection: try again later",
                    End::Refused,
                )
            }
            Problem::Exhausted(shortage) => {
                shortage.report_failure("serve an FTP session");
                ("421 Too many connections: try again later", End::Exhausted)
            }
        };
        let (rule, client_address) = (&self.session.service.name, self.session.peer);
        tracing::debug!(%rule, client = %client_address, reason = text, "FTP: the balancer ends the session");
        self.say_farewell(client, text);
        self.session.watch.arm_deadline(LINGER);
        let mut left = MAX_LINGERING;
        let _ = self
            .session
            .watch
            .poll_until_stop(|cx| {
                let mut bytes = [0; READ_BYTES];
                loop {
                    let mut bytes = ReadBuf::new(&mut bytes);
                    let read = ready!(Pin::new(&mut *client).poll_read(cx, &mut bytes));
                    let n = bytes.filled().len();
                    left = left.saturating_sub(n);
                    if read.is_err() || n == 0 || left == 0 {
                        return Poll::Ready(());
                    }
                }
            })
            .await;
        end
    }

    pub(super) fn count_refusal(&self, refusal: Refusal) {
        let metrics = &self.session.service.metrics;
        let counter = match refusal {
            Refusal::LongLine => &metrics.ftp_long_line,
            Refusal::Malformed => &metrics.ftp_malformed,
            Refusal::Bounce => &metrics.ftp_bounce,
            Refusal::Reply => &metrics.ftp_member_reply,
        };
        counter.add(1);
    }
}

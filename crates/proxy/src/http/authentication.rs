//! Requests that are not taken from everybody: requests of users with passwords (RFC 7617), and
//! requests that a group is asked about ([`super::ask`]).

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use evenkeel_manager::auth::{By, Users};

use super::client::{After, Client};
use super::failure::Failure;
use super::login::{Credentials, Login};
use super::request::Request;
use super::summary::Summary;
use crate::access::End;
use crate::http1::respond::{Answer, AnswerExtras};
use crate::passwords::compare_password;
use crate::watch::Stop;

/// Longest time that a password may wait to be compared.
const PATIENCE: Duration = Duration::from_secs(30);

/// Verdict about a request that has to pass a login.
enum Verdict {
    Right,
    Wrong,
    Missing,
    Busy,
    Gone,
}

impl Client {
    /// Lets a request pass, or answers it: how the connection goes on then.
    pub(super) async fn log_in(
        &mut self,
        request: &mut Request,
        mut login: Box<Login>,
        summary: &mut Summary,
    ) -> Option<After> {
        let routed = request.routed.clone();
        let auth = routed.route().auth.as_ref()?;
        let (verdict, known, challenge) = match (
            std::mem::replace(&mut *login, Login::Passed(None)),
            &auth.by,
        ) {
            (Login::Asks(question), By::Group(asked)) => {
                match self
                    .ask_permission(request, auth, asked, question, summary)
                    .await
                {
                    Ok(user) => {
                        *login = Login::Passed(user);
                        request.login = Some(login);
                        return None;
                    }
                    Err(after) => return Some(after),
                }
            }
            (Login::Password(of), By::Users { users, challenge }) => {
                let verdict = self.check_password(users, of.as_ref()).await;
                (verdict, of.and_then(|of| of.known), challenge)
            }
            // What a head says of itself is what its route wants.
            _ => return Some(After::Cut),
        };
        let metrics = &self.session.service.metrics;
        let (end, status, text) = match verdict {
            Verdict::Right => {
                metrics.auth_passed.add(1);
                *login = Login::Passed(known);
                request.login = Some(login);
                return None;
            }
            Verdict::Missing => {
                metrics.auth_missing.add(1);
                (End::Unauthorized, 401, "A user and a password are needed.")
            }
            Verdict::Wrong => {
                metrics.auth_wrong.add(1);
                (End::Unauthorized, 401, "The user or the password is wrong.")
            }
            Verdict::Busy if self.session.watch.is_over() => {
                let failed = self.answer_failed(request, summary, Failure::DeadlineExceeded);
                return Some(failed.await);
            }
            Verdict::Busy => {
                metrics.auth_busy.add(1);
                let text = "Too many passwords are being compared. Try again later.";
                (End::Refused, 503, text)
            }
            Verdict::Gone => {
                summary.end = End::Terminated;
                return Some(After::Cut);
            }
        };
        summary.end = end;
        let answer = Answer {
            retry_after: (status == 503).then_some(1),
            more: AnswerExtras {
                challenge: (status == 401).then_some(&**challenge),
                ..AnswerExtras::default()
            },
            ..Answer::new_closing(status, text)
        };
        Some(self.give_instead(request, summary, answer).await)
    }

    async fn check_password(&mut self, users: &Arc<Users>, of: Option<&Credentials>) -> Verdict {
        let Some(of) = of else {
            return Verdict::Missing;
        };
        if of.is_proved {
            return Verdict::Right;
        }
        let client = self.session.peer.ip();
        let client = client.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let Ok(mut answered) = compare_password(client, users, &of.user, &of.password) else {
            return Verdict::Busy;
        };
        let Client {
            session, stream, ..
        } = self;
        session.watch.arm_and_look(PATIENCE);
        let waited = session.watch.poll_until_stop(|cx| {
            if session.is_gone(cx, stream, false) {
                return Poll::Ready(None);
            }
            Future::poll(std::pin::Pin::new(&mut answered), cx).map(Some)
        });
        let waited = waited.await;
        session.watch.disarm_deadline();
        match waited {
            Ok(Some(Ok(true))) => {
                session.worker.proofs.borrow_mut().add_proof(of.proof);
                Verdict::Right
            }
            Ok(Some(Ok(false))) => Verdict::Wrong,
            Ok(Some(Err(_))) | Err(Stop::Expired) => Verdict::Busy,
            Ok(None) | Err(Stop::Cut) => Verdict::Gone,
        }
    }
}

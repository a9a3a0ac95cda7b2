//! Answers of members.

use evenkeel_core::group::Outcome;
use evenkeel_core::time::Instant;
use evenkeel_giop::cdr::Reader;
use evenkeel_giop::exception::{Completion, Kind, SystemException};
use evenkeel_giop::fragment;
use evenkeel_giop::ior::Ior;
use evenkeel_giop::message::{Content, GiopError, Message, Reply, ReplyStatus, set_request_id};

use super::endpoint::Addressing;
use super::job::Job;
use super::state::{MemberRequest, Relay, Upstream};
use super::upstream::End;
use crate::keys::Key;

/// Most forwards, and other ways to name the target, that one request is sent on by.
const MOST_HOPS: u8 = 4;

impl Relay {
    /// Handles one message of a member.
    pub(super) fn handle_message(
        &self,
        upstream: &Upstream,
        message: Message<'_>,
        now: Instant,
    ) -> Result<(), End> {
        let content = message.read_content();
        match content.map_err(|error| End::Broken(error.to_string()))? {
            Content::Reply(reply) => {
                // The answer to what was cancelled, or given up, is for nobody.
                if let Some(request) = upstream.take_request(reply.request_id) {
                    self.reply(request, message, &reply, now);
                }
                Ok(())
            }
            Content::CloseConnection => Err(End::Closed),
            Content::MessageError => Err(End::Broken("the member sent MessageError".into())),
            _ => Err(End::Broken(
                "the member sent a message that is not for a client".into(),
            )),
        }
    }

    fn reply(
        &self,
        mut request: MemberRequest,
        message: Message<'_>,
        reply: &Reply<'_>,
        now: Instant,
    ) {
        let reader = || Reader::at_offset(reply.body_at, reply.body, message.header.endian);
        let outcome = match reply.status {
            ReplyStatus::NoException | ReplyStatus::UserException => Outcome::Success,
            ReplyStatus::SystemException => match SystemException::read(&mut reader()) {
                Ok(exception) if is_overloaded(&exception) => {
                    let retry_after = None;
                    request.job.finish(Outcome::Overloaded { retry_after }, now);
                    return match self.another(&mut request.job, now) {
                        Some(member) => self.resend(request.job, &member),
                        None => self.pass_on(request.job, message, reply),
                    };
                }
                Ok(exception) => judge(exception.kind),
                Err(_) => Outcome::Error,
            },
            ReplyStatus::LocationForward | ReplyStatus::LocationForwardPerm => {
                return match Ior::read(&mut reader()) {
                    Ok(to) => self.forward(request, &to, now),
                    Err(_) => self.give_up(request, now),
                };
            }
            ReplyStatus::NeedsAddressingMode => {
                let wanted = reader()
                    .read_u16()
                    .ok()
                    .and_then(Addressing::from_discriminator);
                return match wanted {
                    Some(wanted) => {
                        request.member.readdress(wanted);
                        self.hop(request, now);
                    }
                    None => self.give_up(request, now),
                };
            }
        };
        request.job.finish(outcome, now);
        self.pass_on(request.job, message, reply);
    }

    /// A member says that the object is elsewhere.
    fn forward(&self, mut request: MemberRequest, to: &Ior, now: Instant) {
        let to_the_group = to.iiop_profiles().any(|profile| {
            let key = Key::parse(&profile.object_key);
            key == Some(Key::Group(request.job.entry.id))
        });
        if to_the_group {
            let retry_after = None;
            request.job.finish(Outcome::Overloaded { retry_after }, now);
            self.send_again(request.job, now);
        } else if request.member.accept_forward(to) {
            self.hop(request, now);
        } else {
            self.give_up(request, now);
        }
    }

    /// Sends a request to the same member once more, to another place or under another name.
    fn hop(&self, mut request: MemberRequest, now: Instant) {
        request.job.hops += 1;
        match request.job.hops > MOST_HOPS {
            true => self.give_up(request, now),
            false => self.resend(request.job, &request.member),
        }
    }

    /// A member does not get anywhere with a request, nor has it begun with it.
    fn give_up(&self, mut request: MemberRequest, now: Instant) {
        request.member.endpoint_failed(&request.endpoint);
        request.job.finish(Outcome::Error, now);
        self.send_again(request.job, now);
    }

    /// Passes a reply on to the client as it is, but for the request id.
    fn pass_on(&self, mut job: Job, message: Message<'_>, reply: &Reply<'_>) {
        let Some(later) = job.later.take() else {
            return self.done(job);
        };
        let header = message.header;
        let id = job.reply_to.request_id;
        let passed_on = later.write(|out| {
            let start = out.len();
            if header.version == job.reply_to.version {
                out.extend_from_slice(message.bytes);
                set_request_id(out, start + reply.request_id_at, header.endian, id);
                return fragment::cut_like(&message, out, start)
                    .inspect_err(|_| out.truncate(start));
            }
            if !message.joints.is_empty() {
                return Err(GiopError::Fragment(
                    "fragments of GIOP 1.1 cannot be passed on as GIOP 1.2",
                ));
            }
            let reply = Reply {
                request_id: id,
                ..reply.clone()
            };
            reply.encode(job.reply_to.version, header.endian, out)
        });
        if let Some(Err(error)) = passed_on {
            // A body that is aligned in another way than this version's would be.
            tracing::debug!("CORBA: a reply cannot be relayed: {error}");
            let exception = SystemException::new(Kind::Marshal).with_completion(Completion::Yes);
            job.later = Some(later);
            return self.refuse(job, exception);
        }
        self.done(job);
    }
}

/// Returns true if a member does not want the request, but another member may.
fn is_overloaded(exception: &SystemException) -> bool {
    exception.kind == Kind::Transient && exception.completed == Completion::No
}

/// Returns the outcome that a system exception means for the member: some exceptions are the
/// client's fault, or part of the object's own behaviour.
fn judge(kind: Kind) -> Outcome {
    match kind {
        Kind::Unknown
        | Kind::NoMemory
        | Kind::ImpLimit
        | Kind::CommFailure
        | Kind::Internal
        | Kind::Initialize
        | Kind::PersistStore
        | Kind::Transient
        | Kind::NoResponse
        | Kind::ObjAdapter
        | Kind::NoResources
        | Kind::ObjectNotExist
        | Kind::Timeout => Outcome::Error,
        _ => Outcome::Success,
    }
}

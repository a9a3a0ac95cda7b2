//! Requests that wait for an answer, and how answers are put into messages.

use evenkeel_giop::cdr::{Endian, Writer};
use evenkeel_giop::exception::{Kind, SystemException};
use evenkeel_giop::message::{
    LocateReply, LocateRequest, LocateStatus, Reply, ReplyStatus, Request, Version,
};

use crate::call::Outcome;

/// Address and form of an answer to a Request that expects one, or to a LocateRequest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyTo {
    /// The client's number for it.
    pub request_id: u32,
    /// The version of its message.
    pub version: Version,
    /// The byte order of its message.
    pub endian: Endian,
    /// True for a LocateRequest.
    pub locates: bool,
}

impl ReplyTo {
    /// Returns the address of the answer to a Request; `None` if the Request expects no answer.
    pub fn of_request(request: &Request<'_>, version: Version, endian: Endian) -> Option<Self> {
        request.response_expected().then_some(ReplyTo {
            request_id: request.request_id,
            version,
            endian,
            locates: false,
        })
    }

    /// Returns the address of the answer to a LocateRequest.
    pub fn of_locate(request: &LocateRequest<'_>, version: Version, endian: Endian) -> Self {
        ReplyTo {
            request_id: request.request_id,
            version,
            endian,
            locates: true,
        }
    }

    /// Sends the client to another object. `reference` is it in the byte order of the
    /// request.
    #[inline]
    pub fn write_forward(&self, reference: &[u8], out: &mut Vec<u8>) {
        self.put(
            ReplyStatus::LocationForward,
            Some(LocateStatus::ObjectForward),
            reference,
            out,
        );
    }

    /// Raises a system exception. A LocateReply before 1.2 cannot, and many a client makes
    /// UNKNOWN of one in 1.2. So OBJECT_NOT_EXIST is said as a LocateReply can, and for any
    /// other the client is told to ask the object, so that it gets the exception for its
    /// request.
    pub fn write_exception(&self, exception: SystemException, out: &mut Vec<u8>) {
        let mut body = Writer::new(self.endian);
        exception.write(&mut body);
        let located = match exception.kind {
            Kind::ObjectNotExist => LocateStatus::UnknownObject,
            _ => LocateStatus::ObjectHere,
        };
        let body = match self.locates {
            true => &[],
            false => body.bytes(),
        };
        self.put(ReplyStatus::SystemException, Some(located), body, out);
    }

    /// Says that the target has to be named by its object key.
    pub fn ask_for_key(&self, out: &mut Vec<u8>) {
        // KeyAddr, an unsigned short: 0 in both byte orders.
        let (reply, located) = (
            ReplyStatus::NeedsAddressingMode,
            LocateStatus::NeedsAddressingMode,
        );
        self.put(reply, Some(located), &[0, 0], out);
    }

    /// Says that the object is here. For a LocateRequest only.
    pub fn write_object_here(&self, out: &mut Vec<u8>) {
        let (reply, located) = (ReplyStatus::NoException, LocateStatus::ObjectHere);
        self.put(reply, Some(located), &[], out);
    }

    /// Says how a call has ended.
    pub fn write_outcome(&self, outcome: &Outcome, out: &mut Vec<u8>) {
        match outcome {
            Outcome::Reply(body) => self.put(ReplyStatus::NoException, None, body, out),
            Outcome::User(body) => self.put(ReplyStatus::UserException, None, body, out),
            Outcome::System(exception) => self.write_exception(*exception, out),
            Outcome::Forward(ior) => {
                let mut reference = Writer::new(self.endian);
                ior.write(&mut reference);
                self.write_forward(reference.bytes(), out);
            }
        }
    }

    #[inline]
    fn put(
        &self,
        status: ReplyStatus,
        located: Option<LocateStatus>,
        body: &[u8],
        out: &mut Vec<u8>,
    ) {
        let put = match located.filter(|_| self.locates) {
            Some(status) => LocateReply {
                request_id: self.request_id,
                status,
                body,
            }
            .encode(self.version, self.endian, out),
            None => {
                Reply::new(self.request_id, status, body).encode(self.version, self.endian, out)
            }
        };
        // Statuses are chosen by version, and bodies are far below the limit of 4 GiB.
        debug_assert!(put.is_ok(), "{put:?}");
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_giop::cdr::Reader;
    use evenkeel_giop::ior::Ior;
    use evenkeel_giop::message::{Content, Message};

    use super::*;

    const VERSIONS: [Version; 3] = [Version::V1_0, Version::V1_1, Version::V1_2];

    fn every_question() -> impl Iterator<Item = ReplyTo> {
        VERSIONS.into_iter().flat_map(|version| {
            [Endian::Big, Endian::Little]
                .into_iter()
                .flat_map(move |endian| {
                    [false, true].map(|locates| ReplyTo {
                        request_id: 0x0102_0304,
                        version,
                        endian,
                        locates,
                    })
                })
        })
    }

    /// The status of the one answer that `put` gives.
    fn status(reply_to: &ReplyTo, put: impl Fn(&mut Vec<u8>)) -> (String, Vec<u8>) {
        let mut out = vec![7; 5];
        put(&mut out);
        assert_eq!(out[..5], [7; 5], "what is there already is left alone");
        let message = Message::from_whole(&out[5..]).unwrap();
        assert_eq!(message.header.version, reply_to.version);
        assert_eq!(message.header.endian, reply_to.endian);
        match message.read_content().unwrap() {
            Content::Reply(reply) => {
                assert_eq!(reply.request_id, reply_to.request_id);
                (format!("{:?}", reply.status), reply.body.to_vec())
            }
            Content::LocateReply(reply) => {
                assert!(reply_to.locates);
                assert_eq!(reply.request_id, reply_to.request_id);
                (format!("{:?}", reply.status), reply.body.to_vec())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn exceptions_are_said_as_every_client_understands_t9() {
        let transient = SystemException::new(Kind::Transient);
        let gone = SystemException::new(Kind::ObjectNotExist);
        for reply_to in every_question() {
            let of = |exception| status(&reply_to, |out| reply_to.write_exception(exception, out));
            let ((again, body), (never, _)) = (of(transient), of(gone));
            match (reply_to.locates, reply_to.version) {
                (false, _) => {
                    assert_eq!((&*again, &*never), ("SystemException", "SystemException"));
                    let mut reader = Reader::new(&body, reply_to.endian);
                    assert_eq!(SystemException::read(&mut reader), Ok(transient));
                }
                // T9: in 1.2, too, as there are clients that make UNKNOWN of an exception.
                (true, _) => assert_eq!((&*again, &*never), ("ObjectHere", "UnknownObject")),
            }
        }
    }

    #[test]
    fn outcomes_are_replies() {
        let ior = Ior::new_iiop("IDL:Test:1.0", "h", 1, b"k");
        let reply_to = ReplyTo {
            request_id: 1,
            version: Version::V1_1,
            endian: Endian::Big,
            locates: false,
        };
        for (outcome, expected) in [
            (Outcome::Reply(vec![1, 2]), "NoException"),
            (Outcome::User(vec![1, 2]), "UserException"),
            (
                Outcome::System(SystemException::new(Kind::BadParam)),
                "SystemException",
            ),
            (Outcome::Forward(ior), "LocationForward"),
        ] {
            let (status, body) = status(&reply_to, |out| reply_to.write_outcome(&outcome, out));
            assert_eq!(status, expected);
            if let Outcome::Reply(bytes) = outcome {
                assert_eq!(bytes, body);
            }
        }
    }
}

//! Anys as omniORB and JacORB write them (see golden/README.md).

use evenkeel_giop::any::Any;
use evenkeel_giop::cdr::{Endian, Reader, Writer};
use evenkeel_giop::message::{Content, Message};
use evenkeel_giop::typecode::TypeCode;

/// An Any on the wire.
struct Sent {
    /// Name of the Any, and the ORB that sent it.
    what: String,
    body: Vec<u8>,
    before: usize,
    endian: Endian,
}

impl Sent {
    fn read(&self) -> Any {
        let mut reader = Reader::at_offset(self.before, &self.body, self.endian);
        let any = Any::read(&mut reader).unwrap_or_else(|error| panic!("{}: {error}", self.what));
        assert_eq!(reader.remaining_bytes(), 0, "{}", self.what);
        any
    }
}

/// The type without aliases around it, and the value.
fn unaliased(any: &Any) -> (TypeCode, Vec<u8>) {
    (
        any.type_code().without_aliases(),
        any.value_reader().rest().to_vec(),
    )
}

fn bytes(hex: &str) -> Vec<u8> {
    let bytes = (0..hex.len()).step_by(2).map(|at| {
        let byte = hex.get(at..at + 2).map(|two| u8::from_str_radix(two, 16));
        byte.unwrap_or_else(|| panic!("half a byte in {hex}"))
    });
    let bytes: Result<_, _> = bytes.collect();
    bytes.unwrap_or_else(|error| panic!("{error} in {hex}"))
}

/// All arguments and results of `reflect`, in order.
fn sent(capture: &str) -> Vec<Sent> {
    let mut sent = Vec::new();
    let mut what = None;
    for line in capture.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            what = comment.strip_prefix("reflect ");
            continue;
        }
        let Some(what) = what else {
            continue;
        };
        let message = bytes(&line[2..]);
        let message = Message::from_whole(&message).unwrap_or_else(|error| panic!("{error}"));
        let (body, before) = match message.read_content() {
            Ok(Content::Request(request)) if request.operation == "reflect" => {
                (request.body, request.body_at)
            }
            Ok(Content::Reply(reply)) => (reply.body, reply.body_at),
            Ok(_) => continue,
            Err(error) => panic!("{what}: {error}"),
        };
        sent.push(Sent {
            what: format!("{what} {}", &line[..1]),
            body: body.into(),
            before,
            endian: message.header.endian,
        });
    }
    sent
}

fn omniorb() -> Vec<Sent> {
    sent(include_str!("../golden/omniorb-1.2-any.hex"))
}

fn jacorb() -> Vec<Sent> {
    sent(include_str!("../golden/jacorb-1.2-any.hex"))
}

#[test]
fn what_is_understood_is_written_as_it_came() {
    for sent in omniorb().iter().chain(&jacorb()) {
        let any = sent.read();
        let mut writer = Writer::at_offset(sent.before, sent.endian);
        any.write(&mut writer);
        let written = writer.into_bytes();
        // omniORB says the byte order of wide strings, JacORB leaves out zeros: neither
        // has to.
        let (marked, short) = (sent.what.contains("wstring"), sent.what.contains("fixed_"));
        if written.len() != sent.body.len() {
            assert!(marked || short, "{}", sent.what);
            continue;
        }
        // omniORB leaves garbage in its padding: bytes that nobody reads.
        for at in (0..written.len()).filter(|&at| written[at] != sent.body[at]) {
            let mut body = sent.body.clone();
            body[at] = !body[at];
            let Sent {
                ref what,
                before,
                endian,
                ..
            } = *sent;
            let what = format!("{what} at {at}");
            assert_eq!(
                Sent {
                    what,
                    body,
                    before,
                    endian
                }
                .read(),
                any
            );
        }
    }
}

#[test]
fn both_say_the_same_in_their_own_byte_order() {
    let (omniorb, jacorb) = (omniorb(), jacorb());
    assert_eq!(omniorb.len(), jacorb.len());
    assert!(omniorb.len() > 70);
    for (one, other) in omniorb.iter().zip(&jacorb) {
        assert_eq!(one.what, other.what);
        assert_ne!(one.endian, other.endian);
        let (one, other, what) = (one.read(), other.read(), &one.what);
        let equivalent = one.type_code().is_equivalent(other.type_code());
        // A nil reference is of no interface in particular.
        assert!(equivalent || what.starts_with("objref_nil"), "{what}");
        // References say where their object is; omniORB leaves out the id of an exception,
        // and has no Any with the alias of a bounded string or a fixed.
        if !what.contains("objref") && !what.starts_with("exception") {
            assert_eq!(unaliased(&one), unaliased(&other), "{what}");
        }
    }
}

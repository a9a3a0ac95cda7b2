//! Any bytes as a GIOP message: no panic, and what is read from it is written again, in
//! its own version and byte order and in all others, to what means the same.
#![no_main]

use evenkeel_giop::cdr::{Endian, Reader};
use evenkeel_giop::context::{CODE_SETS, CodeSets};
use evenkeel_giop::exception::SystemException;
use evenkeel_giop::message::{
    Content, GiopError, Header, LocateRequest, Message, Reply, Request, Target, Version,
    set_request_id,
};
use libfuzzer_sys::fuzz_target;

/// The same without where things stand, and without what fills a header up so that the
/// body is aligned as it was.
fn plain<'a>(content: Content<'a>, like: &Content<'a>) -> Content<'a> {
    match (content, like) {
        (Content::Request(got), Content::Request(like)) => {
            assert!(like.body.is_empty() || got.body_at % 8 == like.body_at % 8);
            assert_eq!(got.response_expected(), like.response_expected());
            Content::Request(Request {
                request_id_at: like.request_id_at,
                body_at: like.body_at,
                // One bit of the flags is all that there is before 1.2, and a principal
                // only before.
                response_flags: like.response_flags,
                principal: like.principal,
                target: same_key(got.target, &like.target),
                ..got
            })
        }
        (Content::Reply(got), Content::Reply(like)) => {
            assert!(like.body.is_empty() || got.body_at % 8 == like.body_at % 8);
            assert!(got.contexts.iter().zip(&like.contexts).all(|(a, b)| a == b));
            assert!(got.contexts.len() - like.contexts.len() <= 1);
            Content::Reply(Reply {
                request_id_at: like.request_id_at,
                body_at: like.body_at,
                contexts: like.contexts.clone(),
                ..got
            })
        }
        (Content::LocateRequest(got), Content::LocateRequest(like)) => {
            Content::LocateRequest(LocateRequest {
                target: same_key(got.target, &like.target),
                ..got
            })
        }
        (content, _) => content,
    }
}

/// Before 1.2 the key is all that there is.
fn same_key<'a>(got: Target<'a>, like: &Target<'a>) -> Target<'a> {
    match &got {
        Target::Key(key) if Some(*key) == like.object_key() => like.clone(),
        _ => got,
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(Some(header)) = Header::peek(bytes, 1 << 20) else {
        return;
    };
    assert_eq!(header.total(), header.size as usize + Header::LEN);
    // A message that is cut off is one that a careless caller hands in.
    let bytes = &bytes[..header.total().min(bytes.len())];
    let Ok(content) = Message::new(header, bytes).read_content() else {
        return;
    };
    let id_at = match &content {
        Content::Request(request) => {
            let key = request.target.object_key().map(<[u8]>::to_vec);
            for version in [Version::V1_0, Version::V1_1] {
                let mut out = Vec::new();
                let written = request.encode(version, header.endian, &mut out);
                assert_eq!(written.is_ok(), key.is_some());
            }
            if let Some(data) = request.contexts.get(CODE_SETS)
                && let Ok(sets) = CodeSets::decode(data)
            {
                assert_eq!(CodeSets::decode(&sets.encode(Endian::Big)), Ok(sets));
            }
            Some((request.request_id_at, request.request_id))
        }
        Content::Reply(reply) => {
            let mut reader = Reader::at_offset(reply.body_at, reply.body, header.endian);
            if let Ok(exception) = SystemException::read(&mut reader) {
                let _ = exception.to_string();
            }
            Some((reply.request_id_at, reply.request_id))
        }
        _ => None,
    };
    if let Some((at, id)) = id_at {
        let mut same = bytes.to_vec();
        set_request_id(&mut same, at, header.endian, id);
        assert_eq!(same, bytes);
    }
    for version in [Version::V1_0, Version::V1_1, Version::V1_2] {
        for endian in [Endian::Big, Endian::Little] {
            let mut out = vec![7; 3];
            match content.encode(version, endian, &mut out) {
                Ok(()) => {
                    assert_eq!(out[..3], [7; 3]);
                    let again = Message::from_whole(&out[3..]).unwrap();
                    let again = again.read_content().unwrap();
                    // A fragment has no request id in 1.1.
                    if !matches!(content, Content::Fragment(_)) {
                        assert_eq!(plain(again, &content), content);
                    }
                }
                Err(error) => {
                    assert!(matches!(error, GiopError::NotInVersion { .. }), "{error}");
                    assert!((version, endian) != (header.version, header.endian));
                    assert_eq!(out, [7; 3]);
                }
            }
        }
    }
});

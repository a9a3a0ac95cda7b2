//! Frame of a message: the header, and the place of the body.

use std::mem;

use super::error::GiopError;
use super::header::{Header, Kind};
use super::version::Version;
use crate::cdr::{Endian, Reader, Writer};

/// Appends a header and what `write` writes behind it. If it fails, nothing is appended.
pub(super) fn frame(
    version: Version,
    endian: Endian,
    kind: Kind,
    out: &mut Vec<u8>,
    write: impl FnOnce(&mut Writer) -> Result<(), GiopError>,
) -> Result<(), GiopError> {
    let start = out.len();
    let mut header = Header {
        version,
        endian,
        more: false,
        kind,
        size: 0,
    };
    let mut writer = Writer::append_to(mem::take(out), endian);
    writer.write_raw(&header.encode());
    let result = write(&mut writer);
    *out = writer.into_bytes();
    if result.is_err() {
        out.truncate(start);
        return result;
    }
    let size = out.len() - start - Header::LEN;
    header.size = u32::try_from(size).map_err(|_| {
        let limit = u32::MAX as usize;
        GiopError::TooLarge { size, limit }
    })?;
    if let Some(place) = out.get_mut(start..).and_then(<[u8]>::first_chunk_mut) {
        *place = header.encode();
    }
    Ok(())
}

/// Reads the body of a request or reply, and where it stands. In 1.2 it is aligned to 8;
/// padding without a body behind it is none.
pub(super) fn read_body<'a>(version: Version, reader: &mut Reader<'a>) -> (&'a [u8], usize) {
    if version == Version::V1_2 && reader.align(8, "body").is_err() {
        return (&[], reader.position());
    }
    (reader.rest(), reader.position())
}

/// A body can be put behind another header without being read only where it is aligned as
/// it was: see [`Request::body_at`](super::Request::body_at).
pub(super) fn misaligned(version: Version) -> GiopError {
    let what = "place for a body that is not aligned to 8";
    GiopError::NotInVersion { what, version }
}

/// Writes the body of a request or reply of 1.2.
pub(super) fn write_aligned_body(
    body: &[u8],
    body_at: usize,
    writer: &mut Writer,
) -> Result<(), GiopError> {
    if !body.is_empty() {
        if !body_at.is_multiple_of(8) {
            return Err(misaligned(Version::V1_2));
        }
        writer.align(8);
        writer.write_raw(body);
    }
    Ok(())
}

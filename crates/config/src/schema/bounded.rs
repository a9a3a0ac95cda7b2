//! Reads files of a bounded size.

use std::io::Read;
use std::path::Path;

/// The bytes of a regular file of at most `limit`, or why there are none.
pub(crate) fn read_bytes(path: &Path, limit: u64) -> Result<Vec<u8>, String> {
    let unreadable = |error| format!("cannot be read: {error}");
    // A FIFO or a device would block for ever or never end.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err("cannot be read: it is not a regular file".into());
    }
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    let read = file.take(limit + 1).read_to_end(&mut bytes);
    read.map_err(unreadable)?;
    if bytes.len() as u64 > limit {
        return Err(format!("is too large: more than {limit} bytes"));
    }
    Ok(bytes)
}

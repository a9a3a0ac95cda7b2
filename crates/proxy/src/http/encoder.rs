//! Content codings: a body on its way to a client is compressed piece by piece, and framed in chunks.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use brotli::CompressorWriter;
use brotli::enc::BrotliEncoderParams;
use evenkeel_manager::config::Coding;
use flate2::write::GzEncoder;
use zstd::stream::raw::CParameter;
use zstd::stream::write::Encoder as ZstdEncoder;

use crate::memory::{Charge, Memory};
use crate::metrics::RuleMetrics;

/// Bytes of a body that an encoder looks back at, as a power of two: memory for each response, and
/// more helps little with bodies of the web.
const WINDOW_LOG: u32 = 17;

/// Memory of an encoder for a long body, in bytes: its window, and the tables to find things there.
const MOST_BYTES: u64 = 2 * 1024 * 1024;
/// Memory of an encoder for gzip in bytes, whatever the length of the body.
const GZIP_BYTES: usize = 320 * 1024;
/// Least memory of an encoder, in bytes.
const LEAST_BYTES: u64 = 128 * 1024;

/// Encoder of one body on its way. When the body is over, the encoder counts the bytes that went in
/// and out.
pub(super) struct Encoder {
    writer: Writer,
    /// True if something was written since bytes were last passed on.
    holds: bool,
    taken: u64,
    given: u64,
    metrics: Arc<RuleMetrics>,
    _charge: Charge,
}

/// Writer of a coding. Each writes into a vector, which is emptied after each piece.
enum Writer {
    Zstd(ZstdEncoder<'static, Vec<u8>>),
    Brotli(Box<CompressorWriter<Vec<u8>>>),
    Gzip(GzEncoder<Vec<u8>>),
}

impl Encoder {
    /// An encoder for a body of this `length`, if that is known. `None` if there is no memory for one: then
    /// the body passes as it is.
    pub(super) fn new(
        coding: Coding,
        level: u32,
        length: Option<u64>,
        memory: &Arc<Memory>,
        metrics: &Arc<RuleMetrics>,
    ) -> Option<Box<Self>> {
        let of_length = length.map_or(MOST_BYTES, |length| length.saturating_mul(16));
        let bytes = match coding {
            Coding::Gzip => GZIP_BYTES,
            _ => usize::try_from(of_length.clamp(LEAST_BYTES, MOST_BYTES)).ok()?,
        };
        let charge = memory.take(bytes).ok()?;
        let writer = match coding {
            Coding::Zstd => zstd_writer(level, length).map(Writer::Zstd).ok()?,
            Coding::Brotli => {
                let params = BrotliEncoderParams {
                    quality: level as i32,
                    lgwin: WINDOW_LOG as i32,
                    size_hint: length
                        .and_then(|length| length.try_into().ok())
                        .unwrap_or(0),
                    ..BrotliEncoderParams::default()
                };
                Writer::Brotli(Box::new(CompressorWriter::with_params(
                    Vec::new(),
                    4096,
                    &params,
                )))
            }
            Coding::Gzip => {
                let level = flate2::Compression::new(level);
                Writer::Gzip(GzEncoder::new(Vec::new(), level))
            }
        };
        match coding {
            Coding::Zstd => metrics.encoded_zstd.add(1),
            Coding::Brotli => metrics.encoded_brotli.add(1),
            Coding::Gzip => metrics.encoded_gzip.add(1),
        }
        Some(Box::new(Encoder {
            writer,
            holds: false,
            taken: 0,
            given: 0,
            metrics: Arc::clone(metrics),
            _charge: charge,
        }))
    }

    /// Takes a piece of the body. Bytes that come out of the piece so far are appended to `out`, as
    /// a chunk.
    pub(super) fn write(&mut self, piece: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        self.taken += piece.len() as u64;
        self.holds |= !piece.is_empty();
        match &mut self.writer {
            Writer::Zstd(writer) => writer.write_all(piece)?,
            Writer::Brotli(writer) => writer.write_all(piece)?,
            Writer::Gzip(writer) => writer.write_all(piece)?,
        }
        self.pass_on(out);
        Ok(())
    }

    /// True if the encoder may hold bytes that were taken and that the client does not have yet.
    pub(super) fn holds_bytes(&self) -> bool {
        self.holds
    }

    /// Passes on all that was taken.
    pub(super) fn flush(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        self.holds = false;
        match &mut self.writer {
            Writer::Zstd(writer) => writer.flush()?,
            Writer::Brotli(writer) => writer.flush()?,
            Writer::Gzip(writer) => writer.flush()?,
        }
        self.pass_on(out);
        Ok(())
    }

    /// Appends the rest, and the last chunk.
    pub(super) fn finish_chunks(mut self, out: &mut Vec<u8>) -> io::Result<()> {
        match &mut self.writer {
            Writer::Zstd(writer) => writer.do_finish()?,
            Writer::Brotli(writer) => {
                let none = CompressorWriter::new(Vec::new(), 1, 0, 10);
                let rest = std::mem::replace(&mut **writer, none).into_inner();
                self.given += rest.len() as u64;
                put_chunk(&rest, out);
            }
            Writer::Gzip(writer) => writer.try_finish()?,
        }
        self.pass_on(out);
        out.extend_from_slice(b"0\r\n\r\n");
        Ok(())
    }

    fn pass_on(&mut self, out: &mut Vec<u8>) {
        let ready = match &mut self.writer {
            Writer::Zstd(writer) => writer.get_mut(),
            Writer::Brotli(writer) => writer.get_mut(),
            Writer::Gzip(writer) => writer.get_mut(),
        };
        self.given += ready.len() as u64;
        put_chunk(ready, out);
        ready.clear();
    }
}

impl Drop for Encoder {
    fn drop(&mut self) {
        self.metrics.bytes_before_encoding.add(self.taken);
        self.metrics.bytes_after_encoding.add(self.given);
    }
}

impl fmt::Debug for Encoder {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Encoder")
            .field("taken", &self.taken)
            .field("given", &self.given)
            .finish_non_exhaustive()
    }
}

fn zstd_writer(level: u32, length: Option<u64>) -> io::Result<ZstdEncoder<'static, Vec<u8>>> {
    let mut writer = ZstdEncoder::new(Vec::new(), level as i32)?;
    writer.set_parameter(CParameter::WindowLog(WINDOW_LOG))?;
    // Of a short body it makes small tables.
    writer.set_pledged_src_size(length)?;
    Ok(writer)
}

/// Appends bytes as a chunk (RFC 9112, section 7.1). An empty one would be the last.
fn put_chunk(bytes: &[u8], out: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    // Writing to a vector does not fail.
    let _ = write!(out, "{:x}\r\n", bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

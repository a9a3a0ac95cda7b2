//! Interval logs of HdrHistogram: a histogram of latencies for each second, which other tools read, too.
//!
//! Values are nanoseconds. Histograms without a tag are of latencies from when requests were due, those
//! with the tag `send` from when they were sent.

use std::fmt::Write;
use std::io::{self, Read};
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::read::ZlibDecoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};

use crate::compare::Run;
use crate::plan::Plan;
use crate::report::{Row, to_micros};
use crate::stats::{IntervalCounts, Latencies, Second};

/// The tag of latencies from when requests were sent.
const SEND: &str = "send";
/// Begins a compressed histogram of version 2.
const COMPRESSED: u32 = 0x1c84_9314;
/// Bytes of one that are unpacked at most. Ours have some thousands; a histogram of any size that the
/// library takes has 9 for each of its 6 million counts.
const MOST_UNPACKED: u64 = 64 << 20;
/// Bytes before the counts of a histogram that is not compressed: its cookie, its length, and what it is.
const HEAD: usize = 40;

/// Writes one.
pub struct IntervalLog {
    serializer: V2DeflateSerializer,
    packed: Vec<u8>,
    /// Text that is to stand before the first line.
    head: String,
}

impl IntervalLog {
    /// Makes the log of a run whose counting began at `start`.
    pub fn new(plan: &Plan, start: SystemTime) -> Self {
        let start = start.duration_since(SystemTime::UNIX_EPOCH);
        let start = start.unwrap_or_default().as_secs_f64();
        let loop_kind = if plan.is_open() { "open" } else { "closed" };
        let url = &plan.url;
        IntervalLog {
            serializer: V2DeflateSerializer::new(),
            packed: Vec::new(),
            head: format!(
                "#[Histogram log format version 1.3]\n\
                 #[evenkeel-lab load {}://{}{}, {loop_kind} loop: nanoseconds from when requests were due, \
                 with Tag={SEND} from when they were sent; the column of the longest is in ms]\n\
                 #[StartTime: {start:.3} (seconds since epoch)]\n\
                 #[BaseTime: {start:.3} (seconds since epoch)]\n\
                 \"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n",
                url.scheme.name(),
                url.authority(),
                url.path,
            ),
        }
    }

    /// The lines of a second, the first ones with what stands before them.
    ///
    /// # Errors
    ///
    /// A histogram cannot be written.
    pub fn format_second(
        &mut self,
        second: &Second,
        counted: &IntervalCounts,
    ) -> io::Result<String> {
        let mut text = std::mem::take(&mut self.head);
        for (tag, latencies) in [
            (String::new(), &counted.corrected),
            (format!("Tag={SEND},"), &counted.from_send),
        ] {
            self.packed.clear();
            let packed = self.serializer.serialize(&latencies.0, &mut self.packed);
            packed.map_err(|error| io::Error::other(error.to_string()))?;
            let _ = writeln!(
                text,
                "{tag}{:.3},{:.3},{:.3},{}",
                second.from,
                second.length,
                to_micros(latencies.max()) / 1e3,
                STANDARD.encode(&self.packed)
            );
        }
        Ok(text)
    }
}

/// Unpacks a histogram. The library's own reader believes lengths that the file names.
fn unpack(text: &str, most: u64) -> Result<Latencies, String> {
    let packed = STANDARD.decode(text).map_err(|error| error.to_string())?;
    let (head, packed) = packed.split_first_chunk::<8>().ok_or("cut short")?;
    let [a, b, c, d, ..] = *head;
    if u32::from_be_bytes([a, b, c, d]) != COMPRESSED {
        return Err("not a compressed histogram of version 2".into());
    }
    let mut plain = Vec::new();
    let unpacked = ZlibDecoder::new(packed)
        .take(most + 1)
        .read_to_end(&mut plain);
    unpacked.map_err(|error| error.to_string())?;
    let length = plain.get(4..8).and_then(|bytes| bytes.try_into().ok());
    let length = u32::from_be_bytes(length.ok_or("cut short")?);
    if plain.len() as u64 > most || plain.len() < HEAD + length as usize {
        return Err("the length differs from the one in the header".into());
    }
    let histogram: Histogram<u64> = Deserializer::new()
        .deserialize(&mut &plain[..])
        .map_err(|error| error.to_string())?;
    Ok(Latencies(histogram))
}

/// Reads one, as far as runs are compared. Those of other programs are taken if they are in nanoseconds,
/// too; only histograms without a tag count there.
///
/// # Errors
///
/// It is something else, or a histogram is broken.
pub fn read(bytes: &[u8]) -> Result<Run, String> {
    let (mut due, mut sent) = (Vec::new(), Vec::new());
    // Of a run that was killed the last line may be cut.
    let end = bytes.iter().rposition(|&byte| byte == b'\n');
    let lines = bytes
        .get(..end.map_or(0, |end| end + 1))
        .unwrap_or_default();
    for entry in IntervalLogIterator::new(lines) {
        let entry = entry.map_err(|_| "a line does not belong to an interval log")?;
        let LogEntry::Interval(interval) = entry else {
            continue;
        };
        let of = match interval.tag().map(|tag| tag.as_str()) {
            None => &mut due,
            Some(SEND) => &mut sent,
            Some(_) => continue,
        };
        let start = interval.start_timestamp();
        let latencies = unpack(interval.encoded_histogram(), MOST_UNPACKED)
            .map_err(|error| format!("the histogram of second {}: {error}", start.as_secs_f64()))?;
        of.push((start, row(start, interval.duration(), &latencies)));
    }
    if due.is_empty() {
        return Err("the file has no histogram without a tag".into());
    }
    let has_sends = due.len() == sent.len();
    let rows = due.iter().enumerate().map(|(number, (_, row))| {
        let sent = sent.get(number).filter(|_| has_sends);
        Row {
            sent_p50_us: sent.map_or(0.0, |(_, sent)| sent.p50_us),
            sent_p99_us: sent.map_or(0.0, |(_, sent)| sent.p99_us),
            ..*row
        }
    });
    Ok(Run {
        what: "an interval log".into(),
        rows: rows.collect(),
        has_errors: false,
        has_sends,
        planned: None,
        warnings: Vec::new(),
    })
}

fn row(start: Duration, length: Duration, latencies: &Latencies) -> Row {
    let at = |share| to_micros(latencies.quantile(share));
    let count = latencies.0.len();
    Row {
        second: start.as_secs_f64(),
        length: length.as_secs_f64(),
        begun: count,
        answered: count,
        refusals: 0,
        errors: 0,
        bytes: 0,
        in_flight: 0,
        p50_us: at(0.5),
        p90_us: at(0.9),
        p99_us: at(0.99),
        max_us: at(1.0),
        sent_p50_us: 0.0,
        sent_p99_us: 0.0,
        own_p99_us: 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{PlannedRequest, Scheme, Tcp, Tls, Url, Workload};

    fn plan() -> Plan {
        Plan {
            url: Url {
                scheme: Scheme::Http,
                login: None,
                host: "a.example".into(),
                port: 80,
                path: "/".into(),
            },
            asks: vec![PlannedRequest {
                method: "GET".into(),
                path: "/".into(),
            }],
            zipf: None,
            workload: Workload::Requests,
            threads: 1,
            connections: 1,
            rate: None,
            constant: false,
            duration: None,
            requests: None,
            warm_up: Duration::ZERO,
            timeout: Duration::ZERO,
            seed: 1,
            headers: Vec::new(),
            body: Vec::new(),
            tls: Tls::default(),
            http2: false,
            streams: 1,
            tcp: Tcp::default(),
            max_redirects: 0,
            negotiate: false,
            from: Vec::new(),
        }
    }

    /// Makes the log of a run with so many requests in each second, which took 1, 2, 3 ... ms.
    fn log(seconds: &[u32]) -> String {
        let start = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_500);
        let mut log = IntervalLog::new(&plan(), start);
        let mut text = String::new();
        for (number, requests) in seconds.iter().enumerate() {
            let mut counted = IntervalCounts::default();
            for request in 1..=*requests {
                counted.corrected.record(Duration::from_millis(2) * request);
                counted.from_send.record(Duration::from_millis(1) * request);
            }
            let second = Second {
                from: number as f64,
                length: 1.0,
                ..Second::default()
            };
            text += &log.format_second(&second, &counted).unwrap();
        }
        text
    }

    #[test]
    fn what_is_written_is_read() {
        let text = log(&[100, 0, 300]);
        assert!(text.starts_with("#[Histogram log format version 1.3]\n"));
        assert!(text.contains("\n#[BaseTime: 1700000000.500 (seconds since epoch)]\n"));
        let run = read(text.as_bytes()).unwrap();
        assert!(run.has_sends && !run.has_errors);
        let counts: Vec<_> = run.rows.iter().map(|row| row.answered).collect();
        assert_eq!(counts, [100, 0, 300]);
        let starts: Vec<_> = run.rows.iter().map(|row| row.second).collect();
        assert_eq!(starts, [0.0, 1.0, 2.0]);
        let about = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 0.001);
        about(run.rows[0].p50_us, 100_000.0);
        about(run.rows[2].p99_us, 594_000.0);
        about(run.rows[2].sent_p50_us, 150_000.0);
        // A last line that is cut counts for nothing.
        let cut = &text.as_bytes()[..text.len() - 9];
        let run = read(cut).unwrap();
        assert_eq!((run.rows.len(), run.has_sends), (3, false));
    }

    #[test]
    fn a_broken_log_is_refused() {
        let text = log(&[5]);
        let line = text.lines().find(|line| line.starts_with("0.000")).unwrap();
        let (times, packed) = line.rsplit_once(',').unwrap();
        let refused = |packed: &[u8]| {
            let line = format!("{times},{}\n", STANDARD.encode(packed));
            read(line.as_bytes()).unwrap_err()
        };
        let packed = STANDARD.decode(packed).unwrap();
        for length in 0..packed.len() - 4 {
            refused(&packed[..length]);
        }
        let mut other = packed.clone();
        other[3] ^= 1;
        assert!(refused(&other).contains("version 2"));
        // Lengths that would need gigabytes, of what is packed and of what is not.
        let mut plain = Vec::new();
        ZlibDecoder::new(&packed[8..])
            .read_to_end(&mut plain)
            .unwrap();
        plain[4..8].fill(0xff);
        let again = |plain: &[u8]| {
            let mut all = packed[..8].to_vec();
            let mut encoder =
                flate2::write::ZlibEncoder::new(&mut all, flate2::Compression::default());
            io::Write::write_all(&mut encoder, plain).unwrap();
            encoder.finish().unwrap();
            all
        };
        assert!(refused(&again(&plain)).contains("length"));
        let long = STANDARD.encode(again(&[0; 5000]));
        assert!(unpack(&long, 4999).unwrap_err().contains("length"));
        for wrong in [
            "",
            "x",
            "{}\n",
            "1.0,2.0\n",
            "Tag=a,1.0,1.0,1.0,x\n",
            "a.b,1.0,1.0,x\n",
        ] {
            assert!(read(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}

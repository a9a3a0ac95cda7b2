//! Access logs as others have written them: a request in each line, read without trust. Ours (JSON),
//! the combined format with the time of a request after it, and HAProxy's for HTTP and TCP.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, Read};

use serde_json::Value;

/// The longest line that is read, in bytes.
const MAX_LINE: u64 = 64 * 1024;
/// The most requests that are kept; lines after them are counted.
const MAX_REQUESTS: usize = 1_000_000;
/// The most different names (members, groups, classes) that are kept; further ones are as if they had none.
const MAX_NAMES: usize = 1000;
/// The most different requests that are kept, and the longest; further ones are as if they had no target.
const MAX_TARGETS: usize = 200_000;
const LONGEST_TARGET: usize = 8192;
/// Most members that are kept of those at which a request failed.
const MAX_TRIED: usize = 16;
/// The most unreadable lines that are shown.
const SHOWN: usize = 10;
/// The longest date of a line, in bytes; dates in logs are shorter than 30.
const LONGEST_DATE: usize = 64;
/// Longest time that is accepted, in milliseconds: a day.
const LONGEST: f64 = 86_400e3;

/// Format of a log's lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Evenkeel's own log.
    Json,
    /// Combined format of nginx and Apache httpd; the request's time may follow.
    Combined,
    /// HAProxy's `httplog` and `tcplog`.
    Haproxy,
}

/// A request, or a TCP connection.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// Arrival time, in milliseconds since 1970.
    pub at: f64,
    /// The member that served the request, as an index into [`Log::names`].
    pub member: Option<usize>,
    /// The request's group, or else its rule or front end, if the log names one.
    pub group: Option<usize>,
    /// The request's rule, if the log has one.
    pub rule: Option<usize>,
    /// Method and first part of the path.
    pub class: Option<usize>,
    /// Method and target, as an index into [`Log::requests`], if they were asked for.
    pub request: Option<u32>,
    /// The client's connection over which the request came; `None` if the log does not say.
    pub connection: Option<u64>,
    /// Time that the client waited for the beginning of an answer, in milliseconds.
    pub waited: Option<f64>,
    /// Part of the time in the balancer's queue, in milliseconds; `None` if the log does not say.
    pub queued: Option<f64>,
    /// Part of the time in which a connection to the member was opened; `None` if none was opened, or the log does not
    /// say.
    pub connect: Option<f64>,
    /// Members at which the request failed before, as far as the log names them.
    pub tried: Vec<usize>,
    /// True if the request failed for a reason other than the client.
    pub failed: bool,
    /// True if the request was tried more than once.
    pub retried: bool,
}

/// Content of a log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Log {
    /// Format of the log; `None` if no line could be read.
    pub format: Option<Format>,
    /// Requests by time.
    pub entries: Vec<Entry>,
    /// Names that entries refer to.
    pub names: Vec<String>,
    /// Methods and targets, with a space between them, if they were asked for.
    pub requests: Vec<String>,
    /// Lines that are not empty.
    pub lines: u64,
    /// Number of lines that could not be read.
    pub unreadable: u64,
    /// Descriptions of the first lines that could not be read.
    pub shown: Vec<String>,
    /// Requests after the first [`MAX_REQUESTS`], which are left out.
    pub left_out: u64,
    /// True if times are whole seconds.
    pub whole_seconds: bool,
}

/// Names as numbers.
#[derive(Default)]
struct Names {
    all: Vec<String>,
    known: HashMap<String, usize>,
    /// Methods and targets, if they are wanted.
    requests: Option<(Vec<String>, HashMap<String, u32>)>,
}

impl Names {
    /// Method and target as a number, if they are wanted and can be sent again.
    fn request(&mut self, method: &str, target: &str) -> Option<u32> {
        let (all, known) = self.requests.as_mut()?;
        let is_path = target.starts_with('/') && target.bytes().all(|byte| byte.is_ascii_graphic());
        let is_method = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase());
        if !is_path || !is_method || method.len() + target.len() > LONGEST_TARGET {
            return None;
        }
        let request = format!("{method} {target}");
        if let Some(&number) = known.get(&request) {
            return Some(number);
        }
        let number = u32::try_from(all.len()).ok()?;
        if all.len() >= MAX_TARGETS {
            return None;
        }
        all.push(request.clone());
        known.insert(request, number);
        Some(number)
    }

    fn number(&mut self, name: &str) -> Option<usize> {
        if let Some(&number) = self.known.get(name) {
            return Some(number);
        }
        if self.all.len() >= MAX_NAMES || name.len() > 300 {
            return None;
        }
        self.all.push(name.to_owned());
        self.known.insert(name.to_owned(), self.all.len() - 1);
        Some(self.all.len() - 1)
    }
}

/// Reads a log. Without a format the first line that one of them can read says which it is.
///
/// # Errors
///
/// The source cannot be read. Lines that cannot be understood are counted instead.
pub fn read(source: impl BufRead, format: Option<Format>) -> io::Result<Log> {
    read_with(source, format, Names::default())
}

/// Reads a log like [`read`], with methods and targets, so that requests can be sent once more.
///
/// # Errors
///
/// The errors of [`read`].
pub fn read_requests(source: impl BufRead, format: Option<Format>) -> io::Result<Log> {
    let names = Names {
        requests: Some(Default::default()),
        ..Names::default()
    };
    read_with(source, format, names)
}

fn read_with(
    mut source: impl BufRead,
    format: Option<Format>,
    mut names: Names,
) -> io::Result<Log> {
    let mut log = Log {
        format,
        ..Log::default()
    };
    let (mut bytes, mut number) = (Vec::new(), 0u64);
    loop {
        bytes.clear();
        if source
            .by_ref()
            .take(MAX_LINE)
            .read_until(b'\n', &mut bytes)?
            == 0
        {
            break;
        }
        number += 1;
        let too_long = bytes.len() as u64 >= MAX_LINE && bytes.last() != Some(&b'\n');
        if too_long {
            skip_line(&mut source)?;
        }
        let text = String::from_utf8_lossy(&bytes);
        let line = text.trim();
        if line.is_empty() {
            continue;
        }
        log.lines += 1;
        let found = match (too_long, log.format) {
            (true, _) => Err("longer than 65536 bytes"),
            (false, Some(format)) => parse(line, format, &mut names),
            (false, None) => {
                let formats = [Format::Json, Format::Haproxy, Format::Combined];
                let found = formats
                    .into_iter()
                    .find_map(|format| Some((format, parse(line, format, &mut names).ok()?)));
                log.format = found.as_ref().map(|(format, _)| *format);
                found.map(|(_, entry)| entry).ok_or("in no known format")
            }
        };
        match found {
            Ok(_) if log.entries.len() >= MAX_REQUESTS => log.left_out += 1,
            Ok(entry) => log.entries.push(entry),
            Err(what) => {
                log.unreadable += 1;
                if log.shown.len() < SHOWN {
                    let start: String = line.chars().take(60).collect();
                    log.shown.push(format!(
                        "line {number}: {what}: {start:?}; {}",
                        remedy(log.format)
                    ));
                }
            }
        }
    }
    log.names = names.all;
    log.requests = names.requests.unwrap_or_default().0;
    log.entries.sort_by(|a, b| a.at.total_cmp(&b.at));
    log.whole_seconds = log.entries.iter().all(|entry| entry.at % 1000.0 == 0.0);
    Ok(log)
}

fn skip_line(source: &mut impl BufRead) -> io::Result<()> {
    loop {
        let part = source.fill_buf()?;
        let (used, done) = match part.iter().position(|&byte| byte == b'\n') {
            Some(end) => (end + 1, true),
            None => (part.len(), part.is_empty()),
        };
        source.consume(used);
        if done {
            return Ok(());
        }
    }
}

fn remedy(format: Option<Format>) -> &'static str {
    match format {
        Some(Format::Json) => {
            "the line is left out; a line of this log is a JSON object as in docs/cli.md"
        }
        Some(Format::Combined) => {
            "the line is left out; a line of this log is in the combined format, with or without the \
             time of the request after it"
        }
        Some(Format::Haproxy) => {
            "the line is left out; a line of this log is as `option httplog` or \
            `tcplog` writes it"
        }
        None => "name the format with --log-format, or remove lines that are not requests",
    }
}

fn parse(line: &str, format: Format, names: &mut Names) -> Result<Entry, &'static str> {
    match format {
        Format::Json => json(line, names),
        Format::Combined => combined(line, names),
        Format::Haproxy => haproxy(line, names),
    }
}

/// A time in milliseconds that can be one.
fn time(value: f64) -> Option<f64> {
    (0.0..=LONGEST).contains(&value).then_some(value)
}

/// Identifies a client's connection by the client's address and port.
fn connection(client: &str) -> Option<u64> {
    let (_, port) = client.rsplit_once(':')?;
    port.parse::<u16>().ok()?;
    let mut hasher = DefaultHasher::new();
    client.hash(&mut hasher);
    Some(hasher.finish())
}

/// Method and first part of the path.
fn class(method: &str, target: &str) -> String {
    let path = target.split(['?', '#']).next().unwrap_or_default();
    let first = path.trim_start_matches('/').split('/').next();
    format!("{method} /{}", first.unwrap_or_default())
}

fn json(line: &str, names: &mut Names) -> Result<Entry, &'static str> {
    let value: Value = serde_json::from_str(line).map_err(|_| "no JSON")?;
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    let number = |key: &str| value.get(key).and_then(Value::as_f64);
    let at = text("time")
        .and_then(rfc3339)
        .ok_or("no `time` as in 2026-11-21T21:18:22.153Z")?;
    let end = text("end").ok_or("no `end`")?;
    let request = text("method").zip(text("target"));
    // Refusals for the client's own sake are not what members could do anything about.
    let failed = matches!(end, "member" | "member_timeout" | "stale" | "refused")
        || number("status").is_some_and(|status| status >= 500.0);
    let times = ["first_byte_ms", "response_ms", "queue_ms", "connect_ms"];
    let [first_byte, response, queued, connect] = times.map(|key| number(key).and_then(time));
    let tried = value.get("tried").and_then(Value::as_array);
    let tried = tried.into_iter().flatten().filter_map(Value::as_str);
    Ok(Entry {
        at,
        member: text("member").and_then(|name| names.number(name)),
        group: text("group").and_then(|name| names.number(name)),
        rule: text("rule").and_then(|name| names.number(name)),
        class: request.and_then(|(method, target)| names.number(&class(method, target))),
        request: request.and_then(|(method, target)| names.request(method, target)),
        connection: text("client").and_then(connection),
        // The client's wait is the sum of both.
        waited: first_byte
            .or(response)
            .map(|response| response + queued.unwrap_or(0.0)),
        queued,
        connect,
        tried: (tried.take(MAX_TRIED))
            .filter_map(|name| names.number(name))
            .collect(),
        failed,
        retried: number("retries").is_some_and(|retries| retries > 0.0),
    })
}

fn combined(line: &str, names: &mut Names) -> Result<Entry, &'static str> {
    let (_, rest) = line.split_once(" [").ok_or("no time in brackets")?;
    let (date, rest) = rest.split_once(']').ok_or("no time in brackets")?;
    let at = date_of_log(date).ok_or("no time as in 25/Nov/2026:06:32:19 +0000")?;
    let mut parts = Vec::new();
    let mut rest = rest.trim_start();
    // Tokens, in quotes or not; a quote within quotes has a backslash.
    while !rest.is_empty() && parts.len() < 16 {
        let (part, more) = match rest.strip_prefix('"') {
            Some(quoted) => {
                let mut is_escaped = false;
                let end = quoted.char_indices().find(|&(_, letter)| {
                    let is_end = letter == '"' && !is_escaped;
                    is_escaped = letter == '\\' && !is_escaped;
                    is_end
                });
                let (end, _) = end.ok_or("a quote without an end")?;
                (quoted.get(..end), quoted.get(end + 1..))
            }
            None => {
                let end = rest.find(' ').unwrap_or(rest.len());
                (rest.get(..end), rest.get(end..))
            }
        };
        parts.push(part.unwrap_or_default());
        rest = more.unwrap_or_default().trim_start();
    }
    let [request, status, _, ..] = parts[..] else {
        return Err("no request, status and size");
    };
    let status: u16 = status.parse().map_err(|_| "no status")?;
    let mut words = request.split(' ');
    let request = words.next().zip(words.next());
    // Behind referrer and agent: `$request_time` in seconds, or `%D` in microseconds.
    let extra = parts.get(5..).unwrap_or_default();
    let waited = extra.iter().find_map(|part| {
        let value = part.rsplit_once('=').map_or(*part, |(_, value)| value);
        let number: f64 = value.parse().ok()?;
        time(match value.contains('.') {
            true => number * 1e3,
            false => number / 1e3,
        })
    });
    // `$upstream_addr`: of several the last one answered.
    let is_address = |part: &&&str| {
        let port = part.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
        port.is_some_and(|port| port.is_ok())
    };
    let member = extra.iter().find(is_address);
    let mut members = member.into_iter().flat_map(|part| part.rsplit(", "));
    let member = members.next();
    Ok(Entry {
        at,
        member: member.and_then(|name| names.number(name)),
        class: request.and_then(|(method, target)| names.number(&class(method, target))),
        request: request.and_then(|(method, target)| names.request(method, target)),
        waited,
        tried: (members.take(MAX_TRIED))
            .filter_map(|name| names.number(name))
            .collect(),
        failed: status >= 500,
        ..Entry::default()
    })
}

/// The time of acceptance, the client, and the fields behind both, of a line of HAProxy's.
fn haproxy_begin(line: &str) -> Option<(f64, &str, &str)> {
    // In front of the date is the client, and before it what syslog says, perhaps with brackets.
    line.match_indices(" [").find_map(|(start, _)| {
        let rest = line.get(start + 2..)?;
        // A bracket that ends later is around something else, and there may be thousands.
        let end = rest
            .bytes()
            .take(LONGEST_DATE)
            .position(|byte| byte == b']')?;
        let (date, rest) = (rest.get(..end)?, rest.get(end + 1..)?);
        let client = line.get(..start)?.rsplit(' ').next()?;
        Some((date_of_log(date)?, client, rest))
    })
}

fn haproxy(line: &str, names: &mut Names) -> Result<Entry, &'static str> {
    let found = haproxy_begin(line);
    let (accepted, client, rest) = found.ok_or("no time as in [25/Nov/2026:06:32:19.123]")?;
    let mut words = rest.split_whitespace();
    let mut word = || words.next().ok_or("too few fields");
    let front = word()?.trim_end_matches('~');
    let (back, server) = word()?.split_once('/').ok_or("no back end and server")?;
    let times = word()?.split('/').map(|part| {
        let part = part.trim_start_matches('+');
        part.parse::<f64>()
            .ok()
            .filter(|time| time.abs() <= LONGEST)
    });
    let times: Option<Vec<f64>> = times.collect();
    let times = times.ok_or("no times as in 0/0/1/5/6")?;
    let known = |time: f64| (time >= 0.0).then_some(time);
    let (start, queued, connect, waited, http) = match times[..] {
        // TR/Tw/Tc/Tr/Ta; -1 is what did not come to pass.
        [head, queue, connect, response, _] => {
            let all = known(queue).zip(known(connect)).zip(known(response));
            let waited = all.map(|((queue, connect), response)| queue + connect + response);
            (head.max(0.0), known(queue), known(connect), waited, true)
        }
        // Tw/Tc/Tt: a connection is what is balanced, for as long as it lasts.
        [queue, connect, all] => {
            let all = known(connect).and(known(all));
            (0.0, known(queue), known(connect), all, false)
        }
        _ => return Err("no times as in 0/0/1/5/6, or 0/1/5"),
    };
    let status = match http {
        true => Some(word()?.parse::<i32>().map_err(|_| "no status")?),
        false => None,
    };
    let _bytes = word()?;
    if http {
        word()?;
        word()?;
    }
    let ended = word()?;
    let counts = word()?;
    let retried = counts.rsplit('/').next().is_some_and(|retries| {
        retries
            .trim_start_matches('+')
            .parse::<u32>()
            .is_ok_and(|n| n > 0)
    });
    // The first letter says who ended it: `S` the server, `s` its time limit.
    let by_server = ended.starts_with(['S', 's']);
    let request = rest.split_once('"').map(|(_, request)| request);
    let mut words = request.unwrap_or_default().split(' ');
    let request = words.next().zip(words.next());
    Ok(Entry {
        at: accepted + start,
        member: (server != "<NOSRV>")
            .then(|| names.number(server))
            .flatten(),
        group: names.number(back),
        rule: names.number(front),
        class: request.and_then(|(method, target)| names.number(&class(method, target))),
        request: request.and_then(|(method, target)| names.request(method, target)),
        connection: connection(client),
        waited,
        queued,
        // 0 is also what it is where a connection was used again.
        connect: connect.filter(|&connect| connect > 0.0),
        failed: by_server || status.is_some_and(|status| status >= 500),
        retried,
        ..Entry::default()
    })
}

/// `2026-11-21T21:18:22.153Z` in milliseconds since 1970.
fn rfc3339(text: &str) -> Option<f64> {
    let (date, clock) = text.strip_suffix('Z')?.split_once('T')?;
    let mut parts = date.split('-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    moment(year, month, day, clock)
}

/// `25/Nov/2026:06:32:19 +0000`, or with milliseconds and without a zone.
fn date_of_log(text: &str) -> Option<f64> {
    let (date, rest) = text.split_once(':')?;
    let mut parts = date.split('/');
    let (day, month, year) = (parts.next()?, parts.next()?, parts.next()?);
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let month = 1 + MONTHS.iter().position(|name| *name == month)? as i64;
    let (clock, zone) = match rest.split_once(' ') {
        Some((clock, zone)) => (clock, zone.parse::<i64>().ok()?),
        None => (rest, 0),
    };
    if !(-2400..=2400).contains(&zone) {
        return None;
    }
    let ahead = (zone / 100 * 60 + zone % 100) as f64 * 60e3;
    Some(moment(year.parse().ok()?, month, day.parse().ok()?, clock)? - ahead)
}

/// Milliseconds since 1970 of a date and a `06:32:19.123`.
fn moment(year: i64, month: i64, day: i64, clock: &str) -> Option<f64> {
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let mut parts = clock.split(':');
    let (hour, minute) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let second: f64 = parts.next()?.parse().ok()?;
    let (0..=23u32, 0..=59u32) = (hour, minute) else {
        return None;
    };
    if !(0.0..61.0).contains(&second) {
        return None;
    }
    // Howard Hinnant, chrono-Compatible Low-Level Date Algorithms (2014): days from civil.
    let of_era = if month <= 2 { year - 1 } else { year };
    let era = of_era / 400;
    let year = of_era - era * 400;
    let month = (month + 9) % 12;
    let of_year = (153 * month + 2) / 5 + day - 1;
    let days = era * 146_097 + year * 365 + year / 4 - year / 100 + of_year - 719_468;
    let minutes = days * 1440 + i64::from(hour * 60 + minute);
    Some(minutes as f64 * 60e3 + (second * 1e3).round())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> (Log, Entry) {
        let log = read(line.as_bytes(), None).unwrap();
        assert_eq!(log.unreadable, 0, "{:?}", log.shown);
        let entry = log.entries[0].clone();
        (log, entry)
    }

    fn name(log: &Log, number: Option<usize>) -> &str {
        number.map_or("", |number| &log.names[number])
    }

    #[test]
    fn each_format_is_recognised_and_read() {
        let (log, entry) = one(
            r#"{"time":"2024-02-29T12:34:56.789Z","rule":"web","client":"[::1]:4711","member":"a:80","method":"GET","target":"/shop/7?b=c","status":200,"bytes_received":0,"bytes_sent":1234,"response_ms":1.25,"total_ms":2.5,"retries":1,"end":"complete"}"#,
        );
        assert_eq!(log.format, Some(Format::Json));
        assert_eq!(entry.at, 1_709_210_096_789.0);
        assert_eq!((entry.waited, entry.queued), (Some(1.25), None));
        assert_eq!(name(&log, entry.member), "a:80");
        assert_eq!(name(&log, entry.class), "GET /shop");
        assert!(entry.retried && !entry.failed);

        let (_, entry) = one(
            r#"{"time":"2024-02-29T12:34:56.789Z","rule":"web","member":"a:80","queue_ms":40.0,"response_ms":2.5,"end":"complete"}"#,
        );
        assert_eq!((entry.waited, entry.queued), (Some(42.5), Some(40.0)));
        assert!(entry.tried.is_empty() && entry.connect.is_none());

        let (log, entry) = one(
            r#"{"time":"2024-02-29T12:34:56.789Z","rule":"web","member":"a:80","tried":["b:80",7,"c:80"],"connect_ms":0.5,"response_ms":2.5,"retries":2,"end":"complete"}"#,
        );
        assert_eq!(entry.connect, Some(0.5));
        assert_eq!(
            [0, 1].map(|at| name(&log, entry.tried.get(at).copied())),
            ["b:80", "c:80"]
        );

        let line = r#"127.0.0.1 - - [29/Feb/2024:14:34:56 +0200] "GET /a/b HTTP/1.1" 502 5 "-" "a \"b\" c" 0.120 10.0.0.1:80"#;
        let (log, entry) = one(line);
        assert_eq!(log.format, Some(Format::Combined));
        assert_eq!(entry.at, 1_709_210_096_000.0);
        assert_eq!(entry.waited, Some(120.0));
        assert_eq!(name(&log, entry.member), "10.0.0.1:80");
        assert!(entry.failed && log.whole_seconds && entry.tried.is_empty());

        let (log, entry) = one(&line.replace(" 10.0.0.1:80", r#" "10.0.0.1:80, 10.0.0.2:80""#));
        assert_eq!(name(&log, entry.member), "10.0.0.2:80");
        assert_eq!(name(&log, entry.tried.first().copied()), "10.0.0.1:80");

        let line = r#"Feb 29 12:34:56 host haproxy[14389]: 10.0.1.2:33317 [29/Feb/2024:12:34:56.655] in web/s1 10/3/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {1wt.eu} {} "GET /index.html HTTP/1.1""#;
        let (log, entry) = one(line);
        assert_eq!(log.format, Some(Format::Haproxy));
        assert_eq!(entry.at, 1_709_210_096_665.0);
        assert_eq!((entry.waited, entry.queued), (Some(102.0), Some(3.0)));
        assert_eq!(entry.connect, Some(30.0));
        assert_eq!(entry.connection, connection("10.0.1.2:33317"));
        assert_ne!(entry.connection, connection("10.0.1.2:33318"));
        assert_eq!(name(&log, entry.group), "web");

        let line =
            "10.0.1.2:33313 [29/Feb/2024:12:34:56.655] fnt bck/srv1 0/0/5007 212 SD 0/0/0/0/3 0/0";
        let (_, entry) = one(line);
        assert_eq!(entry.waited, Some(5007.0));
        assert!(entry.failed && entry.retried);
    }

    #[test]
    fn unreadable_lines_are_counted_and_the_first_ten_shown() {
        let good = r#"1.1.1.1 - - [29/Feb/2024:12:34:56 +0000] "GET / HTTP/1.1" 200 5"#;
        let long = "x".repeat(200_000);
        let text = format!("{good}\n\n{}{long}\n{good}\n", "what?\n".repeat(11));
        let log = read(text.as_bytes(), None).unwrap();
        assert_eq!((log.lines, log.unreadable, log.entries.len()), (14, 12, 2));
        assert_eq!(log.shown.len(), 10);
        assert!(
            log.shown[0]
                .starts_with("line 3: no time in brackets: \"what?\"; the line is left out")
        );
    }

    #[test]
    fn no_bytes_cause_a_panic() {
        let seeds = [
            r#"{"time":"2024-02-29T12:34:56.789Z","member":"a:80","response_ms":1.25,"end":"complete"}"#,
            r#"1.1.1.1 - - [29/Feb/2024:14:34:56 +0200] "GET /a HTTP/1.1" 502 5 "-" "x" 0.1 a:80"#,
            r#"1:1 [29/Feb/2024:12:34:56.655] in w/s 10/0/3/6/19 200 2 - - ---- 1/1/1/1/0 0/0 "GET / HTTP/1.1""#,
        ];
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..100_000 {
            let mut line = seeds[rng.usize(..seeds.len())].as_bytes().to_vec();
            for _ in 0..rng.usize(1..6) {
                let at = rng.usize(..line.len());
                match rng.u8(..4) {
                    0 => line[at] = rng.u8(..),
                    1 => line.insert(at, b"\"[]/:- \\9-\n\xc3"[rng.usize(..11)]),
                    2 => line.truncate(at.max(1)),
                    _ => {
                        line.remove(at);
                        line.push(b'9');
                    }
                }
            }
            for format in [
                None,
                Some(Format::Json),
                Some(Format::Combined),
                Some(Format::Haproxy),
            ] {
                let log = read(&line[..], format).unwrap();
                assert_eq!(log.lines, log.unreadable + log.entries.len() as u64);
            }
        }
    }
}

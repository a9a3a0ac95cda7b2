//! `evenkeel kernel trace`: packets of one client, and what the program has done with each of them.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use evenkeel_kernel::forward::{
    Connection, Place, Trace as Traced, TracedHeader, TracedPacket, UdpSession, Verdict,
    find_interface_name,
};
use evenkeel_net::clock::monotonic_nanos;

use crate::cli::kernel::Trace;
use crate::failure::Failure;
use crate::output::print;
use crate::plural::format_count;
use crate::process::{self, Signals};

/// Time between two looks at the packets.
const LOOK: Duration = Duration::from_millis(100);

/// Shows packets until the time is over, enough packets have come, or a signal comes.
pub(super) fn trace(args: &Trace) -> Result<(), Failure> {
    let (ip, port) = args.client;
    let place = Place::of_this_namespace();
    let traced =
        Traced::begin(&place, ip, port, monotonic_nanos(), args.time).map_err(Failure::of)?;
    let mut output = Output::new(args.json);
    output.begin(&traced, args.time)?;
    let runtime = process::build_runtime()?;
    runtime.block_on(async {
        let mut signals = Signals::listen()?;
        let end = tokio::time::sleep(args.time);
        tokio::pin!(end);
        let mut left = args.packets;
        loop {
            let is_over = tokio::select! {
                _ = signals.wait_for_end() => true,
                () = &mut end => true,
                () = tokio::time::sleep(LOOK) => false,
            };
            for packet in traced
                .take_packets()
                .map_err(Failure::of)?
                .iter()
                .take(left)
            {
                left -= 1;
                output.write_packet(packet)?;
            }
            if is_over || left == 0 {
                return output.end(&traced);
            }
        }
    })
}

/// Lines of a trace.
struct Output {
    is_json: bool,
    /// Time of the first packet.
    first: Option<u64>,
    interfaces: HashMap<u32, String>,
    /// Meanings of what has become of packets, by name.
    meanings: BTreeMap<&'static str, &'static str>,
    lost: u64,
}

impl Output {
    fn new(is_json: bool) -> Self {
        Output {
            is_json,
            first: None,
            interfaces: HashMap::new(),
            meanings: BTreeMap::new(),
            lost: 0,
        }
    }

    fn begin(&self, traced: &Traced, time: Duration) -> Result<(), Failure> {
        if self.is_json {
            return Ok(());
        }
        let mut text = list_entries(traced)?;
        text.push_str(&format!(
            "tracing for {} s; Ctrl-C ends the trace\n",
            time.as_secs_f64()
        ));
        print(text)
    }

    fn write_packet(&mut self, packet: &TracedPacket) -> Result<(), Failure> {
        self.lost += u64::from(packet.lost);
        let name = self.interfaces.entry(packet.interface).or_insert_with(|| {
            find_interface_name(packet.interface).unwrap_or_else(|| packet.interface.to_string())
        });
        let since = packet
            .ns
            .saturating_sub(*self.first.get_or_insert(packet.ns));
        let ms = since as f64 / 1e6;
        if self.is_json {
            return print(format!("{}\n", packet.to_json(name, ms)));
        }
        self.meanings.extend(packet.outcomes.iter().copied());
        print(format_line(packet, name, ms))
    }

    fn end(&self, traced: &Traced) -> Result<(), Failure> {
        if self.is_json {
            return Ok(());
        }
        let mut text = String::new();
        if self.first.is_none() {
            text.push_str(
                "no packet of the client has come by: look whether the client reaches this machine, and at the rule's address\n",
            );
        }
        if self.lost > 0 {
            let lost = format_count(usize::try_from(self.lost).unwrap_or(usize::MAX), "packet");
            text.push_str(&format!("{lost} not shown, as there was no room\n"));
        }
        for (name, meaning) in &self.meanings {
            text.push_str(&format!("{name}: {meaning}\n"));
        }
        text.push_str(&list_entries(traced)?);
        print(text)
    }
}

/// Returns a line for each of the client's connections and sessions in the tables.
fn list_entries(traced: &Traced) -> Result<String, Failure> {
    let connections = traced.list_connections().map_err(Failure::of)?;
    let sessions = traced.list_sessions().map_err(Failure::of)?;
    let connections = connections.iter();
    let connections = connections.map(|one| (one.began_ns, format_connection(one)));
    // The port of a single datagram rests for long.
    let is_shown = |one: &&UdpSession| one.is_open() || !one.is_single();
    let sessions = sessions.iter().filter(is_shown);
    let sessions = sessions.map(|one| (one.began_ns, format_session(one)));
    let mut all: Vec<_> = connections.chain(sessions).collect();
    all.sort();
    Ok(all.into_iter().map(|(_, line)| line).collect())
}

fn format_connection(connection: &Connection) -> String {
    let state = match () {
        () if !connection.is_open() => "has ended",
        () if connection.is_answered() => "answered",
        () if connection.is_established() => "accepted",
        () => "not accepted yet",
    };
    format!(
        "in the table: {} → {} at member {}: {state}\n",
        connection.pair.client, connection.listener, connection.pair.member
    )
}

fn format_session(session: &UdpSession) -> String {
    let state = match () {
        () if !session.is_open() => "has ended",
        () if session.is_direct() => "answers clients itself",
        () if session.is_answered() => "answered",
        () => "not answered yet",
    };
    format!(
        "in the table: UDP {} → {} at member {}: {state}\n",
        session.of.client, session.of.listener, session.member
    )
}

fn format_line(packet: &TracedPacket, interface: &str, ms: f64) -> String {
    let TracedPacket { before, after, .. } = packet;
    let result = match packet.verdict {
        Verdict::Forwarded if before == after => "sent as it is".into(),
        Verdict::Forwarded if has_other_ends(before, after) => format!("sent as {after}"),
        // An answer to the sender, such as the SYN for another member.
        Verdict::Forwarded => format!("sent as {} {after}", after.describe()),
        Verdict::LeftToSystem => "left to the system".into(),
        Verdict::Dropped => "dropped".into(),
    };
    let outcomes: Vec<_> = packet.outcomes.iter().map(|(name, _)| *name).collect();
    let outcomes = match outcomes.is_empty() {
        true => String::new(),
        false => format!(" ({})", outcomes.join(", ")),
    };
    format!(
        "{ms:10.3} ms {interface} {} {before} {} bytes: {result}{outcomes}\n",
        before.describe(),
        before.length
    )
}

/// True if only addresses and ports differ.
fn has_other_ends(before: &TracedHeader, after: &TracedHeader) -> bool {
    let TracedHeader { from, to, .. } = *after;
    before.describe() == after.describe()
        && TracedHeader {
            from,
            to,
            ..*before
        } == *after
}

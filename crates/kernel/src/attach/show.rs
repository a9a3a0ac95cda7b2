//! Status of an interface's responder, in words and as JSON.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::{COUNTERS, Mode, Status};

impl Mode {
    /// Describes the mode in words.
    pub const fn in_words(self) -> &'static str {
        match self {
            Mode::Native => "XDP in the driver",
            Mode::Generic => "generic XDP",
            Mode::Tc => "traffic control",
        }
    }
}

impl Status {
    /// Returns the status as JSON.
    pub fn to_json(&self, interface: &str) -> Value {
        let counters: Map<String, Value> = COUNTERS
            .iter()
            .zip(self.counters)
            .map(|((name, _), count)| ((*name).to_owned(), count.into()))
            .collect();
        let cgroups = self.cgroups.iter();
        let cgroups = cgroups.map(|(target, id)| json!({ "target": target, "id": id }));
        let allow = self.allow.iter().map(ToString::to_string);
        json!({
            "interface": interface,
            "mode": self.mode.name(),
            "attached": self.program.is_some(),
            "program": self.program,
            "port": self.port,
            "rate": self.rate,
            "keys": self.keys,
            "allow": allow.collect::<Vec<_>>(),
            "hosts": self.hosts,
            "listen_ports": self.ports,
            "cgroups": cgroups.collect::<Vec<_>>(),
            "counters": counters,
        })
    }

    /// A line for each thing that is known.
    pub fn text(&self) -> String {
        let mode = self.mode.in_words();
        let responder = match self.program {
            Some(program) => format!("{mode}, program {program}"),
            None => format!("not on the interface any more ({mode}): run `evenkeel kernel attach`"),
        };
        let rate = match self.rate {
            0 => "any".to_owned(),
            rate => format!("{rate} per second and source"),
        };
        let cgroup = |(target, id): &(u16, u64)| format!("{target} (inode {id})");
        let mut out = String::new();
        // Writing to a string cannot fail.
        let mut line = |name: &str, value: String| {
            let _ = writeln!(out, "{name:<20}{value}");
        };
        line("responder", responder);
        line("port", self.port.to_string());
        line("rate", rate);
        line("keys", list(&self.keys, ToString::to_string));
        line("allow", list(&self.allow, ToString::to_string));
        line("hosts", format!("{} names or addresses", self.hosts));
        line("listen ports", list(&self.ports, ToString::to_string));
        line("cgroups", list(&self.cgroups, cgroup));
        for ((name, meaning), count) in COUNTERS.iter().zip(self.counters) {
            line(name, format!("{count:>12}  {meaning}"));
        }
        out
    }
}

fn list<T>(items: &[T], text: impl Fn(&T) -> String) -> String {
    if items.is_empty() {
        return "none".into();
    }
    items.iter().map(text).collect::<Vec<_>>().join(", ")
}

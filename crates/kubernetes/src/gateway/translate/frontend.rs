//! Rules of the configuration: one for each port, with its routes and targets.

use std::collections::HashSet;
use std::net::IpAddr;

use super::super::attach::covers_host;
use super::super::listeners::{Class, ListenerState};
use super::super::text::{Owner, quote, quote_list};
use super::{Entry, StreamTarget, Work, rank_host, write_route};

impl Work<'_> {
    pub(super) fn write_frontend(
        &mut self,
        index: usize,
        mut entries: Vec<Entry>,
        targets: Vec<StreamTarget>,
    ) {
        let Some(frontend) = self.frontends.get(index) else {
            return;
        };
        let serving: Vec<usize> = frontend
            .listeners
            .iter()
            .copied()
            .filter(|of| self.listeners.get(*of).is_some_and(ListenerState::serves))
            .collect();
        let first = serving
            .first()
            .and_then(|number| self.listeners.get(*number));
        let Some(first) = first else {
            return;
        };
        let is_stream = matches!(frontend.class, Class::Passthrough | Class::Tcp);
        // A port without a route refuses connections.
        if is_stream && targets.is_empty() {
            return;
        }
        let owner = Owner::Listener(
            first.gateway.metadata.object_name(),
            first.listener.name.clone(),
        );
        let port = frontend.port.to_string();
        let name = self.names.find(&["kubernetes", &port]);
        let rule = format!("rule.{}", quote(&name));
        let owners = serving.iter().filter_map(|of| self.listeners.get(*of));
        let owners = owners
            .map(|of| Owner::Listener(of.gateway.metadata.object_name(), of.listener.name.clone()));
        self.rules.insert(name.clone(), owners.collect());
        self.text.begin(owner.clone());
        self.text.line(&format!("[{rule}]"));
        let listen = frontend.addresses.iter().map(|address| match address {
            IpAddr::V4(address) => format!("{address}:{port}"),
            IpAddr::V6(address) => format!("[{address}]:{port}"),
        });
        let listen: Vec<String> = listen.collect();
        self.text.line(&format!(
            "listen = {}",
            quote_list(listen.iter().map(String::as_str))
        ));
        if is_stream {
            self.text.line("protocol = \"tcp\"");
            let (named, any): (Vec<_>, Vec<_>) =
                targets.into_iter().partition(|(host, ..)| host.is_some());
            if let Some((_, group, _)) = any.first() {
                self.text.line(&format!("group = {}", quote(group)));
            }
            if !named.is_empty() {
                self.text.line(&format!("[{rule}.sni]"));
                for (host, group, owner) in named {
                    self.text.begin(owner);
                    self.text.line(&format!(
                        "{} = {}",
                        quote(&host.unwrap_or_default()),
                        quote(&group)
                    ));
                }
            }
            return;
        }
        if frontend.class == Class::Https {
            let mut pairs = Vec::new();
            for number in &serving {
                let certificates = self.listeners.get(*number).map(|of| &of.certificates);
                for (certificate, key) in certificates.into_iter().flatten() {
                    let pair = format!(
                        "{{ certificate = {}, key = {} }}",
                        quote(&certificate.display().to_string()),
                        quote(&key.display().to_string())
                    );
                    if !pairs.contains(&pair) {
                        pairs.push(pair);
                    }
                }
            }
            self.text.line(&format!(
                "tls = {{ certificates = [{}] }}",
                pairs.join(", ")
            ));
        }
        entries.sort_by(|a, b| a.rank.cmp(&b.rank));
        let mut hosts: Vec<Option<&str>> = serving
            .iter()
            .filter_map(|of| self.listeners.get(*of))
            .map(ListenerState::hostname)
            .collect();
        hosts.sort_by_key(|host| rank_host(*host));
        let mut hosts: Vec<Option<String>> = hosts
            .into_iter()
            .map(|host| host.map(str::to_ascii_lowercase))
            .collect();
        hosts.dedup();
        let mut seen = HashSet::new();
        let mut left = entries.into_iter().peekable();
        for (place, host) in hosts.iter().enumerate() {
            let (rank, mut is_closed) = (rank_host(host.as_deref()), false);
            while let Some(entry) = left.next_if(|entry| entry.rank.0 <= rank) {
                let mut conditions = entry.conditions;
                if let Some(host) = &entry.host {
                    conditions.insert(0, format!("host = [{}]", quote(host)));
                }
                is_closed |= entry.host == *host
                    && (conditions.len() == usize::from(host.is_some())
                        || conditions
                            .last()
                            .is_some_and(|line| line == "path = [\"/*\"]"));
                // Of two routes with the same conditions the older one serves.
                if seen.insert(conditions.join("\n")) {
                    self.text.begin(entry.owner);
                    write_route(
                        &mut self.text,
                        &rule,
                        &entry.name,
                        &conditions,
                        &entry.actions,
                    );
                }
            }
            // Requests for this listener never get to routes of a listener that is less specific.
            let later = hosts.get(place + 1..).unwrap_or_default();
            let has_wider = later.iter().any(|other| match (other, host) {
                (None, _) => true,
                (Some(other), Some(host)) => covers_host(other, host),
                (Some(_), None) => false,
            });
            if !is_closed && (has_wider || host.is_none() || place + 1 == hosts.len()) {
                let conditions = host.iter().map(|host| format!("host = [{}]", quote(host)));
                let conditions: Vec<String> = conditions.collect();
                self.text.begin(owner.clone());
                let actions = ["answer = { status = 404 }".to_owned()];
                write_route(&mut self.text, &rule, "none", &conditions, &actions);
            }
        }
    }
}

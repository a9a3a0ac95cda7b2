//! Rules of the configuration: one for each port, with its routes and targets.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_config::UNNAMED;

use super::super::gateway_tls::{ClientValidation, are_alike};
use super::super::listeners::{Class, ListenerState};
use super::super::rule_policies::{RuleKeys, RulePlace};
use super::super::text::{
    Lines, OwnedPart, Owner, covers_host, hash_of, quote, quote_list, write_host,
};
use super::entry::Entry;
use super::{StreamTarget, Work, rank_host};

/// Writes the condition on a host.
pub(super) fn write_condition(host: &str) -> String {
    format!("host = [{}]", quote(&write_host(host)))
}

/// Beginning of a rule of the configuration.
struct RuleHead {
    name: String,
    /// Addresses to listen on.
    listen: Vec<String>,
    /// Numbers of the listeners that the rule serves.
    serving: Vec<usize>,
    /// True if clients come through a rule for connections.
    is_inner: bool,
    /// True if other rules serve requests at the port, too.
    has_siblings: bool,
}

impl Work<'_> {
    /// Writes the certificates of listeners, each in a line that belongs to the listener.
    fn write_certificates(&mut self, rule: &str, serving: &[usize]) {
        self.text.line(&format!("[{rule}.tls]"));
        self.text.line("certificates = [");
        let mut known = HashSet::new();
        for listener in serving.iter().filter_map(|of| self.listeners.get(*of)) {
            self.text.begin(listener.owner());
            for (certificate, key) in &listener.certificates {
                let pair = format!(
                    "{{ certificate = {}, key = {} }},",
                    quote(&certificate.display().to_string()),
                    quote(&key.display().to_string())
                );
                if known.insert(pair.clone()) {
                    self.text.line(&pair);
                }
            }
        }
        self.text.line("]");
        // All listeners of a rule verify clients in the same way.
        let verifying = { serving.iter() }.filter_map(|of| self.listeners.get(*of));
        let mut verifying = verifying.filter_map(|of| Some((of.owner(), of.validation.as_ref()?)));
        if let Some((owner, validation)) = verifying.next() {
            let line = validation.write();
            self.text.begin(owner);
            self.text.line(&line);
        }
    }

    /// Writes the keys of a rule for connections that policies set. Where TLS ends here, or names choose the group, the proxy
    /// serves the connections, and the rule has keys of gateways only: all policies of routes that want anything else are noted
    /// at once.
    fn write_stream_lines(
        &mut self,
        name: &str,
        class: Class,
        (serving, all): (&[usize], &[usize]),
        ends_tls: bool,
        targets: &[Arc<StreamTarget>],
    ) {
        let routes = targets.iter().map(|target| target.owner.as_ref());
        let is_tls = matches!(class, Class::Passthrough | Class::Terminate);
        let has_names = targets.iter().any(|target| target.host.is_some());
        let target = targets.iter().find(|target| target.host.is_none());
        let group = target.map(|target| target.group.clone());
        if is_tls && (ends_tls || has_names) {
            let key = if ends_tls { "tls" } else { "sni" };
            let unfit = (self.policies.groups).list_unfit_policies(key, routes);
            self.contradictions.extend(unfit);
            self.write_rule_lines(name, class, (serving, all), std::iter::empty(), group);
        } else {
            self.write_rule_lines(name, class, (serving, all), routes, group);
        }
    }

    /// Writes the keys of a rule that policies of `routes` and of gateways set, each in a line that belongs to its policy.
    /// `serving` are the listeners of the rule, and `all` those of the port. `group` has clients without a name of their own.
    fn write_rule_lines<'r>(
        &mut self,
        name: &str,
        class: Class,
        (serving, all): (&[usize], &[usize]),
        routes: impl Iterator<Item = &'r Owner>,
        group: Option<String>,
    ) {
        let gateway_of = |number: &usize| {
            let listener = self.listeners.get(*number)?;
            Some(listener.gateway.metadata.object_name())
        };
        let place = RulePlace {
            name,
            class,
            oldest: { all.iter().find_map(gateway_of) }.unwrap_or_default(),
            refused: self.refused,
        };
        let gateways = serving.iter().filter_map(gateway_of);
        let found = (self.policies.groups).list_rule_lines(&place, routes, gateways);
        self.contradictions.extend(found.refusals);
        let lines = found.lines;
        for (line, owner) in &lines {
            self.text.begin(owner.clone());
            self.text.line(&line.write());
        }
        if !lines.is_empty() {
            self.rule_lines
                .insert(name.to_owned(), RuleKeys { group, lines });
        }
    }

    /// Writes the protocol, the certificates and the targets of a rule for connections.
    fn write_stream(
        &mut self,
        (name, rule): (&str, &str),
        class: Class,
        (serving, all): (&[usize], &[usize]),
        owner: &Owner,
        targets: &[Arc<StreamTarget>],
    ) {
        let protocol = match class {
            Class::Udp => "udp",
            _ => "tcp",
        };
        self.text.line(&format!("protocol = {}", quote(protocol)));
        let ends_tls = { serving.iter() }
            .filter_map(|number| self.listeners.get(*number)?.class)
            .any(Class::ends_tls);
        self.write_stream_lines(name, class, (serving, all), ends_tls, targets);
        self.text.begin(owner.clone());
        if let Some(target) = targets.iter().find(|target| target.host.is_none()) {
            self.text.begin(target.owner.clone());
            self.text.line(&format!("group = {}", quote(&target.group)));
        }
        if ends_tls && targets.iter().any(|target| target.passes) {
            self.text.begin(owner.clone());
            self.text.line("pass_through = [");
            for target in targets.iter().filter(|target| target.passes) {
                let name = target.host.as_deref().map(write_host);
                self.text.begin(target.owner.clone());
                let name = name.as_deref().unwrap_or(UNNAMED);
                self.text.line(&format!("{},", quote(name)));
            }
            self.text.begin(owner.clone());
            self.text.line("]");
        }
        if ends_tls {
            self.write_certificates(rule, serving);
        }
        let mut named = targets.iter().filter(|of| of.host.is_some()).peekable();
        if named.peek().is_some() {
            self.text.begin(owner.clone());
            self.text.line(&format!("[{rule}.sni]"));
            for target in named {
                let host = target.host.as_deref().unwrap_or_default();
                self.text.begin(target.owner.clone());
                self.text.line(&format!(
                    "{} = {}",
                    quote(&write_host(host)),
                    quote(&target.group)
                ));
            }
        }
    }

    /// Writes the beginning of a rule. Returns the name of its table, and the owner of its lines; `None` without listeners.
    fn write_head(&mut self, rule: &RuleHead) -> Option<(String, Owner)> {
        let serving = { rule.serving.iter() }.filter_map(|of| self.listeners.get(*of));
        let owners: Vec<Owner> = serving.map(ListenerState::owner).collect();
        let owner = owners.first()?.clone();
        let table = format!("rule.{}", quote(&rule.name));
        self.rules.insert(rule.name.clone(), owners);
        self.text.begin_rule(&rule.name, owner.clone());
        self.text.line(&format!("[{table}]"));
        let listen = quote_list(rule.listen.iter().map(String::as_str));
        self.text.line(&format!("listen = {listen}"));
        Some((table, owner))
    }

    /// Writes the rules of a port: one for requests, or for connections. If a port has listeners for HTTPS, and others for
    /// TLS, or for HTTPS with another verification of clients, a rule for connections has the port, and passes TLS of clients
    /// that ask for names of HTTPS to a rule for requests.
    pub(super) fn write_frontend(
        &mut self,
        index: usize,
        entries: &[Arc<Entry>],
        mut targets: Vec<Arc<StreamTarget>>,
    ) {
        let Some(frontend) = self.frontends.get(index).cloned() else {
            return;
        };
        let all = &frontend.listeners;
        let serves = |of: &usize| self.listeners.get(*of).is_some_and(ListenerState::serves);
        let serving: Vec<usize> = all.iter().copied().filter(serves).collect();
        let is_stream = |of: &usize| {
            let class = self.listeners.get(*of).and_then(|of| of.class);
            class.is_some_and(Class::is_stream)
        };
        let (streams, requests): (Vec<usize>, Vec<usize>) =
            serving.iter().partition(|of| is_stream(of));
        let first = { serving.first() }.and_then(|number| self.listeners.get(*number));
        let Some(first) = first else {
            return;
        };
        // A port without a route refuses connections.
        if requests.is_empty() && targets.is_empty() {
            return;
        }
        let port = frontend.port.to_string();
        let gateway = &first.gateway.metadata;
        let mut parts = vec!["kubernetes"];
        if !self.settings.pool.is_empty() {
            // The gateway that stands for Ingresses has no namespace.
            let of_gateway = [gateway.namespace.as_str(), gateway.name.as_str()];
            parts.extend(of_gateway.into_iter().filter(|part| !part.is_empty()));
        }
        parts.push(&port);
        parts.extend((frontend.class == Class::Udp).then_some("udp"));
        let listen = frontend.addresses.iter().map(|address| match address {
            IpAddr::V4(address) => format!("{address}:{port}"),
            IpAddr::V6(address) => format!("[{address}]:{port}"),
        });
        let rule = RuleHead {
            name: self.names.find(&parts),
            listen: listen.collect(),
            serving,
            is_inner: false,
            has_siblings: false,
        };
        let by_validation = self.group_by_validation(&requests);
        if streams.is_empty() && by_validation.len() == 1 {
            return self.write_requests(&rule, all, entries);
        }
        if by_validation.is_empty() {
            return self.write_connections(&rule, &streams, all, targets);
        }
        let known = targets.iter().map(|target| target.host.clone());
        let mut known: HashSet<Option<String>> = known.collect();
        let (has_siblings, mut of_requests) = (by_validation.len() > 1, Vec::new());
        for serving in by_validation {
            let first = { serving.first() }.and_then(|of| self.listeners.get(*of));
            let validation = first.and_then(|of| of.validation.as_ref());
            let word = validation.map(ClientValidation::find_word);
            let own = ["https"].into_iter().chain(word.as_deref());
            let of_parts: Vec<&str> = parts.iter().copied().chain(own).collect();
            let name = self.names.find(&of_parts);
            let hash = hash_of(&rule.listen);
            let inner = RuleHead {
                listen: vec![format!("unix:@evenkeel-{name}-{hash:016x}")],
                name,
                serving,
                is_inner: true,
                has_siblings,
            };
            self.add_request_targets(&inner, &mut known, &mut targets);
            of_requests.push(inner);
        }
        self.write_connections(&rule, &streams, all, targets);
        let mut of_rules: Vec<Vec<Arc<Entry>>> = vec![Vec::new(); of_requests.len()];
        let numbers = of_requests.iter().enumerate();
        let numbers: HashMap<usize, usize> = numbers
            .flat_map(|(number, inner)| inner.serving.iter().map(move |of| (*of, number)))
            .collect();
        for entry in entries {
            let number = numbers.get(&entry.listener);
            let own = number.and_then(|number| of_rules.get_mut(*number));
            own.into_iter().for_each(|own| own.push(Arc::clone(entry)));
        }
        for (inner, own) in of_requests.iter().zip(&of_rules) {
            self.write_requests(inner, all, own);
            self.write_request_group(inner);
        }
    }

    /// Returns listeners for HTTPS by the verification of their clients: a rule verifies all of them in the same way.
    fn group_by_validation(&self, requests: &[usize]) -> Vec<Vec<usize>> {
        let mut groups: Vec<(Option<&ClientValidation>, Vec<usize>)> = Vec::new();
        for number in requests {
            let listener = self.listeners.get(*number);
            let validation = listener.and_then(|of| of.validation.as_ref());
            let known = { groups.iter_mut() }.find(|(known, _)| are_alike(*known, validation));
            match known {
                Some((_, numbers)) => numbers.push(*number),
                None => groups.push((validation, vec![*number])),
            }
        }
        groups.into_iter().map(|(_, numbers)| numbers).collect()
    }

    /// Returns the hosts of listeners, the most specific first, with the owners of the listeners.
    fn list_hosts(&self, numbers: &[usize]) -> Vec<(Option<String>, Owner)> {
        let mut hosts: Vec<(Option<String>, Owner)> = { numbers.iter() }
            .filter_map(|of| self.listeners.get(*of))
            .map(|of| (of.hostname().map(str::to_ascii_lowercase), of.owner()))
            .collect();
        hosts.sort_by_cached_key(|(host, _)| (rank_host(host.as_deref()), host.clone()));
        hosts.dedup_by(|(host, _), (before, _)| host == before);
        hosts
    }

    /// Adds the targets of clients whose TLS a rule for requests ends.
    /// `known` has the names of all targets.
    fn add_request_targets(
        &self,
        rule: &RuleHead,
        known: &mut HashSet<Option<String>>,
        targets: &mut Vec<Arc<StreamTarget>>,
    ) {
        for listener in { rule.serving.iter() }.filter_map(|of| self.listeners.get(*of)) {
            let host = listener.hostname().map(str::to_ascii_lowercase);
            // Ingresses and a gateway may both have all names.
            if !known.insert(host.clone()) {
                continue;
            }
            targets.push(Arc::new(StreamTarget {
                host,
                group: rule.name.clone(),
                owner: Arc::new(listener.owner()),
                passes: true,
            }));
        }
    }

    /// Writes the group whose member is a rule for requests.
    fn write_request_group(&mut self, rule: &RuleHead) {
        let first = { rule.serving.first() }.and_then(|of| self.listeners.get(*of));
        let Some(owner) = first.map(ListenerState::owner) else {
            return;
        };
        let mut lines = Lines::default();
        lines.line(&format!("[group.{}]", quote(&rule.name)));
        let members = quote_list(rule.listen.iter().map(String::as_str));
        lines.line(&format!("members = {members}"));
        lines.line("send_proxy = \"v2\"");
        self.text.groups_mut().push(OwnedPart::new(owner, lines));
    }

    /// Writes a rule for connections, whose listeners are `streams`. `all` are the listeners of the port.
    fn write_connections(
        &mut self,
        rule: &RuleHead,
        streams: &[usize],
        all: &[usize],
        mut targets: Vec<Arc<StreamTarget>>,
    ) {
        let first = streams.first().and_then(|of| self.listeners.get(*of));
        // TLS of all clients may pass to rules for requests.
        let class = first.and_then(|of| of.class).unwrap_or(Class::Passthrough);
        let Some((table, owner)) = self.write_head(rule) else {
            return;
        };
        if matches!(class, Class::Passthrough | Class::Terminate) {
            self.add_refusals(all, streams, &mut targets);
        }
        let numbers = (streams, all);
        self.write_stream((&rule.name, &table), class, numbers, &owner, &targets);
    }

    /// Writes a rule for requests, with its routes. `all` are the listeners of the port.
    fn write_requests(&mut self, rule: &RuleHead, all: &[usize], entries: &[Arc<Entry>]) {
        let Some((table, owner)) = self.write_head(rule) else {
            return;
        };
        if rule.is_inner {
            // Anybody can connect to a socket without a file, and would name any client.
            self.text.line("accept_proxy = [\"self\"]");
        }
        let mut serving = { rule.serving.iter() }.filter_map(|of| self.listeners.get(*of));
        let ends_tls = serving.any(|of| of.class.is_some_and(Class::ends_tls));
        let class = if ends_tls { Class::Https } else { Class::Http };
        self.write_rule_lines(
            &rule.name,
            class,
            (&rule.serving, all),
            std::iter::empty(),
            None,
        );
        self.text.begin(owner);
        // The names of listeners that do not serve are closed, too.
        let mut hosts = self.list_hosts(all);
        if rule.has_siblings {
            // Clients of other names connect to another rule.
            let own = self.list_hosts(&rule.serving);
            let covers = |name: &Option<String>| {
                own.iter().any(|(of, _)| match (of, name) {
                    (None, _) => true,
                    (Some(of), Some(name)) => covers_host(of, name),
                    (Some(_), None) => false,
                })
            };
            hosts.retain(|(host, _)| covers(host));
        }
        if ends_tls {
            if hosts.len() > 1 || rule.has_siblings {
                // Clients that have connected to a listener never get to another one.
                let hosts = hosts
                    .iter()
                    .map(|(host, _)| host.as_deref().map(write_host));
                let mut hosts: Vec<String> = hosts
                    .map(|host| host.unwrap_or_else(|| UNNAMED.into()))
                    .collect();
                if rule.has_siblings && !hosts.iter().any(|host| host == UNNAMED) {
                    hosts.push(UNNAMED.into());
                }
                let hosts = quote_list(hosts.iter().map(String::as_str));
                self.text.line(&format!("http.separate_hosts = {hosts}"));
            }
            self.write_certificates(&table, &rule.serving);
        }
        let Some(routes) = self.text.routes_mut() else {
            return;
        };
        routes.reserve(entries.len() + hosts.len());
        let mut left = entries.iter().peekable();
        for (place, (host, owner)) in hosts.iter().enumerate() {
            let (rank, mut is_closed) = (rank_host(host.as_deref()), false);
            while let Some(entry) = left.next_if(|entry| entry.ranks.0 <= rank) {
                is_closed |= entry.host == *host && entry.serves_all;
                // Of two routes with the same conditions the older one serves, since it comes first. The other one is
                // checked all the same.
                routes.push(Arc::<Entry>::clone(entry));
            }
            // Requests for this listener never get to routes of a listener that is less specific.
            let later = hosts.get(place + 1..).unwrap_or_default();
            // The listener of all names is the last one.
            let has_wider = later.iter().rev().any(|(other, _)| match (other, host) {
                (None, _) => true,
                (Some(other), Some(host)) => covers_host(other, host),
                (Some(_), None) => false,
            });
            if !is_closed && (has_wider || host.is_none() || place + 1 == hosts.len()) {
                let mut lines = Lines::default();
                lines.line("name = \"none\"");
                if let Some(host) = host {
                    lines.line(&write_condition(host));
                }
                lines.line("answer = { status = 404 }");
                routes.push(OwnedPart::new(owner.clone(), lines));
            }
        }
    }
}

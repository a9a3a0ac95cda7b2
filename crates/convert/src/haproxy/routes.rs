//! Rules and routes of frontends: where requests go.

use super::binds::Bind;
use super::conditions::{Alternatives, Facts, TWICE, read};
use super::proxy::{Action, Proxy};
use crate::model::{Conditions, Group, Head, Model, Rule};
use crate::note::Notes;
use crate::toml::{Table, Value};

impl Proxy {
    /// The rules of a frontend: one for the addresses with TLS, and one for those without.
    pub(super) fn add_rules(&self, all: &[Proxy], model: &mut Model) {
        let has_traffic =
            self.default_backend.is_some() || !self.uses.is_empty() || !self.actions.is_empty();
        if self.binds.is_empty() || !has_traffic && self.servers.is_empty() {
            if !self.binds.is_empty() {
                model.notes.add_note(
                    self.line,
                    "no backend serves clients here: the frontend is left out",
                );
            }
            return;
        }
        let key = |bind: &Bind| (bind.tls.clone(), bind.accept_proxy, bind.mode.clone());
        let mut kinds: Vec<(_, Vec<&Bind>)> = Vec::new();
        for bind in &self.binds {
            match kinds.iter_mut().find(|(known, _)| *known == key(bind)) {
                Some((_, binds)) => binds.push(bind),
                None => kinds.push((key(bind), vec![bind])),
            }
        }
        for ((tls, accept_proxy, mode), binds) in kinds {
            let wanted = match (&tls, self.binds.len() == binds.len()) {
                (Some(_), false) => format!("{}-tls", self.name),
                _ => self.name.clone(),
            };
            let name = Model::name(&wanted, |name| model.has_rule(name));
            let mut keys = Table::default();
            let addresses = binds.iter().flat_map(|bind| bind.addresses.iter().cloned());
            let addresses = model.take_addresses(addresses.collect());
            if addresses.is_empty() {
                model.notes.add_note(
                    self.line,
                    "another rule listens on this address: this rule is left out",
                );
                continue;
            }
            let has_socket = addresses.iter().any(|address| address.starts_with("unix:"));
            keys.set("listen", Value::one_or_list(&addresses));
            let is_mode = |mode: &String| {
                mode.len() == 3 && mode.bytes().all(|digit| (b'0'..=b'7').contains(&digit))
            };
            if let Some(mode) = mode.filter(is_mode) {
                keys.set("listen_mode", mode);
            }
            if self.is_tcp {
                keys.set("protocol", "tcp");
            }
            if accept_proxy {
                let mut from = vec!["0.0.0.0/0", "::/0"];
                from.extend(has_socket.then_some("unix"));
                keys.set("accept_proxy", from);
            }
            let facts = Facts {
                has_tls: tls.is_some(),
            };
            if let Some(tls) = tls {
                keys.set("tls", tls);
            }
            let mut rule = Rule {
                name,
                keys,
                routes: Vec::new(),
            };
            self.fill(&mut rule, facts, all, model);
            model.rules.push(rule);
        }
    }

    /// The backend of this name.
    fn backend<'p>(&'p self, name: &str, all: &'p [Proxy]) -> Option<&'p Proxy> {
        let mut backends = all
            .iter()
            .filter(|proxy| proxy.has_servers && !proxy.servers.is_empty());
        backends.find(|proxy| proxy.name == name)
    }

    fn fill(&self, rule: &mut Rule, facts: Facts, all: &[Proxy], model: &mut Model) {
        let default = match &self.default_backend {
            Some((line, name)) => {
                let backend = self.backend(name, all);
                if backend.is_none() {
                    model
                        .notes
                        .add_note(*line, format!("there is no backend {name} with servers"));
                }
                backend
            }
            None => Some(self).filter(|own| own.has_servers && !own.servers.is_empty()),
        };
        if let Some(default) = default {
            rule.keys
                .set("group", Model::name(&default.name, |_| false));
        }
        rule.keys.add_missing(&self.rule);
        let own = self.has_servers.then_some(self);
        let mut http = self.http.clone();
        let mut times = default
            .or(own)
            .map(|backend| backend.times.clone())
            .unwrap_or_default();
        if let Some(retries) = times.remove("retries") {
            match self.is_tcp {
                true => rule.keys.set("connect_retries", retries),
                false => http.set("retries", retries),
            }
        }
        rule.keys.add_missing(&times);
        if self.is_tcp {
            for key in [
                "body_timeout",
                "header_timeout",
                "keep_alive_timeout",
                "response_timeout",
                "compression",
                "error_pages",
            ] {
                rule.keys.remove(key);
            }
        }
        if let Some(Value::Table(compression)) =
            default.and_then(|backend| backend.rule.get("compression"))
        {
            rule.keys.set_new("compression", compression.clone());
        }
        let mut limits = self.limits.clone();
        let periods: Vec<String> = limits
            .keys()
            .filter(|key| key.starts_with("period"))
            .map(str::to_owned)
            .collect();
        for period in &periods {
            limits.remove(period);
        }
        if self.is_tcp {
            limits.remove("requests");
            limits.remove("status");
        }
        if !limits.is_empty() {
            rule.keys.set("limits", limits);
        }
        if self.is_tcp {
            return self.fill_tcp(rule, default, facts, all, model);
        }
        if default.is_some_and(|backend| backend.servers.speaks_http2) {
            http.set("member_protocol", "h2");
        }
        if !http.is_empty() {
            rule.keys.set("http", http);
        }
        self.fill_http(rule, default, facts, all, model);
    }

    fn fill_tcp(
        &self,
        rule: &mut Rule,
        default: Option<&Proxy>,
        facts: Facts,
        all: &[Proxy],
        model: &mut Model,
    ) {
        let mut is_served = default.is_some();
        for (line, name, when) in &self.uses {
            let found = read(when, &self.acls, facts);
            let names = match &found {
                Ok(alternatives) => match alternatives.as_slice() {
                    [one]
                        if (Conditions {
                            names: Vec::new(),
                            ..one.clone()
                        })
                        .is_any() =>
                    {
                        one.names.clone()
                    }
                    _ => Vec::new(),
                },
                Err(_) => Vec::new(),
            };
            match self.backend(name, all) {
                _ if names.is_empty() || rule.keys.get("tls").is_some() => {
                    model.notes.add_note(
                        *line,
                        "TCP rules choose only by the TLS server name that \
                        clients ask for (`sni`)",
                    );
                }
                None => model
                    .notes
                    .add_note(*line, format!("there is no backend {name} with servers")),
                Some(backend) => {
                    is_served = true;
                    for server_name in names {
                        rule.keys
                            .ensure_table("sni")
                            .set_new(&server_name, Model::name(&backend.name, |_| false));
                    }
                }
            }
        }
        if !is_served {
            // A rule must have members: at this address nobody listens.
            let name = Model::name("none", |name| {
                model.find_group(name).is_some() || all.iter().any(|proxy| proxy.name == name)
            });
            let mut keys = Table::default();
            keys.set("members", vec!["127.0.0.1:1"]);
            rule.keys.set("group", name.as_str());
            model.groups.push(Group { name, keys });
            model.notes.add_note(
                self.line,
                "the backend has no servers: 127.0.0.1:1 stands in their place",
            );
        }
    }

    fn fill_http(
        &self,
        rule: &mut Rule,
        default: Option<&Proxy>,
        facts: Facts,
        all: &[Proxy],
        model: &mut Model,
    ) {
        let notes = &mut model.notes;
        for (line, action, when) in &self.actions {
            self.answer(rule, (*line, action, when), facts, notes);
        }
        let shares = self.add_backend_routes(rule, facts, all, notes);
        for (line, _, _, when) in &self.rewrites {
            if !self.uses.iter().any(|(_, _, of_use)| of_use == when) {
                notes.add_note(*line, "a route replaces the prefix of its `path`: give the route of that path `rewrite_prefix`");
            }
        }
        if let Some(backend) = default.filter(|backend| !std::ptr::eq(*backend, self)) {
            self.actions_of(backend, &Conditions::default(), rule, facts, notes);
        }
        self.add_last_route(rule, default, &shares, notes);
    }

    /// Adds the routes of `use_backend`. Returns the groups that get a percentage of the other requests.
    fn add_backend_routes(
        &self,
        rule: &mut Rule,
        facts: Facts,
        all: &[Proxy],
        notes: &mut Notes,
    ) -> Vec<(String, u64)> {
        let mut shares: Vec<(String, u64)> = Vec::new();
        for (line, name, when) in &self.uses {
            let Some(backend) = self.backend(name, all) else {
                notes.add_note(*line, format!("there is no backend {name} with servers"));
                continue;
            };
            let alternatives = match read(when, &self.acls, facts) {
                Ok(alternatives) => alternatives,
                Err(why) => {
                    notes.add_note(*line, why);
                    continue;
                }
            };
            for conditions in &alternatives {
                if !conditions.names.is_empty() {
                    notes.add_note(*line, "routes compare hosts, and not TLS server names");
                    continue;
                }
                if let Some(share) = conditions.share {
                    let mut rest = conditions.clone();
                    rest.share = None;
                    match rest.is_any() {
                        true => shares.push((Model::name(&backend.name, |_| false), share)),
                        false => notes.add_note(
                            *line,
                            "to split these requests, give each of the `groups` of their route a weight",
                        ),
                    }
                    continue;
                }
                self.actions_of(backend, conditions, rule, facts, notes);
                rule.routes
                    .push(self.backend_route(backend, conditions, when));
            }
        }
        shares
    }

    /// Returns the route to a backend for some conditions.
    fn backend_route(&self, backend: &Proxy, conditions: &Conditions, when: &[String]) -> Table {
        let mut route = conditions.to_route();
        route.set("group", Model::name(&backend.name, |_| false));
        if let Some((prefix, to)) = self.rewritten(conditions, when) {
            if conditions.paths.is_empty() {
                route.set("path", format!("{prefix}/*"));
            }
            route.set("rewrite_prefix", to);
        }
        self.finish_route(&mut route, Some(backend));
        route
    }

    /// Adds the route for requests that no other route takes, if the rule itself cannot say what it says.
    fn add_last_route(
        &self,
        rule: &mut Rule,
        default: Option<&Proxy>,
        shares: &[(String, u64)],
        notes: &mut Notes,
    ) {
        let mut last = Table::default();
        let taken: u64 = shares.iter().map(|(_, share)| *share).sum();
        let has_shares = taken > 0;
        if has_shares {
            for (group, share) in shares {
                last.ensure_table("groups").set_new(group, *share);
            }
            if let Some(default) = default {
                let name = Model::name(&default.name, |_| false);
                let rest = 100_u64.saturating_sub(taken);
                last.ensure_table("groups").set_new(&name, rest);
            }
        }
        self.finish_route(&mut last, default);
        // Keys that the rule has.
        for key in [
            "connection_timeout",
            "queue_timeout",
            "response_timeout",
            "idle_timeout",
            "retries",
        ] {
            last.remove(key);
        }
        let is_served = default.is_some() || has_shares;
        if !last.is_empty() && is_served {
            rule.routes.push(last);
        }
        let answers_all = |route: &Table| route.keys().all(|key| !is_condition(key));
        let answers_all = rule.routes.iter().any(answers_all);
        let lacks_backend = !answers_all && self.default_backend.is_some();
        if !is_served && (rule.routes.is_empty() || lacks_backend) {
            let mut answer = Table::default();
            answer.set("status", 503_u64);
            let mut route = Table::default();
            route.set("answer", answer);
            rule.routes.push(route);
            notes.add_note(self.line, "requests for which there are no servers get 503");
        }
    }

    /// Adds what a backend does by itself with the requests that get there.
    fn actions_of(
        &self,
        backend: &Proxy,
        conditions: &Conditions,
        rule: &mut Rule,
        facts: Facts,
        notes: &mut Notes,
    ) {
        if std::ptr::eq(backend, self) {
            return;
        }
        for (line, action, when) in &backend.actions {
            let found = read(when, &backend.acls, facts);
            let both = found.and_then(|all| {
                let both = all.iter().map(|one| conditions.merge_with(one));
                both.collect::<Option<Alternatives>>()
                    .ok_or_else(|| TWICE.into())
            });
            self.act_on(rule, (*line, action), both, notes);
        }
    }

    fn answer(
        &self,
        rule: &mut Rule,
        (line, action, when): (usize, &Action, &[String]),
        facts: Facts,
        notes: &mut Notes,
    ) {
        let found = read(when, &self.acls, facts);
        self.act_on(rule, (line, action), found, notes);
    }

    /// Adds routes that do something with some requests.
    fn act_on(
        &self,
        rule: &mut Rule,
        (line, action): (usize, &Action),
        found: Result<Alternatives, String>,
        notes: &mut Notes,
    ) {
        let alternatives = match found {
            Ok(alternatives) => alternatives,
            Err(why) => return refuse(line, action, why, notes),
        };
        for conditions in &alternatives {
            if conditions.share.is_some() || !conditions.names.is_empty() {
                refuse(line, action, "routes have no such condition".into(), notes);
                continue;
            }
            if conditions.is_narrower && matches!(action, Action::Answer { status: 400.., .. }) {
                let why = "paths are compared with their case, and a prefix ends at a slash: others get through";
                notes.add_restriction(line, why);
            }
            let mut route = conditions.to_route();
            act(&mut route, action);
            self.response.write_to(Head::Response, &mut route);
            rule.routes.push(route);
        }
    }

    /// The change of the path that has the same condition.
    fn rewritten(&self, conditions: &Conditions, when: &[String]) -> Option<(String, String)> {
        let (_, prefix, to, _) = self
            .rewrites
            .iter()
            .find(|(_, _, _, of_rewrite)| of_rewrite == when)?;
        let fits = |path: &String| *path == format!("{prefix}/*");
        let is_for = conditions.paths.iter().all(fits);
        is_for.then(|| (prefix.clone(), to.clone()))
    }

    /// Adds what holds for all requests, and what the backend says of its own.
    fn finish_route(&self, route: &mut Table, backend: Option<&Proxy>) {
        let (mut request, mut response) = (self.request.clone(), self.response.clone());
        if let Some(backend) = backend.filter(|backend| !std::ptr::eq(*backend, self)) {
            request.extend(&backend.request);
            response.extend(&backend.response);
        }
        request.write_to(Head::Request, route);
        response.write_to(Head::Response, route);
        if let Some(backend) = backend {
            if let Some(pages) = backend.rule.get("error_pages")
                && self.rule.get("error_pages") != Some(pages)
            {
                route.set("error_pages", pages.clone());
            }
            route.add_missing(&backend.route);
            route.add_missing(&backend.times);
        }
    }
}

/// True if a key of a route is a condition.
fn is_condition(key: &str) -> bool {
    [
        "host",
        "path",
        "method",
        "client",
        "except_client",
        "headers",
        "query",
        "cookies",
    ]
    .contains(&key)
}

/// Notes that an action is left out.
fn refuse(line: usize, action: &Action, why: String, notes: &mut Notes) {
    match action {
        Action::Answer { status: 400.., .. } => notes.add_restriction(line, why),
        _ => notes.add_note(line, why),
    }
}

/// Has a route do this.
fn act(route: &mut Table, action: &Action) {
    match action {
        Action::Redirect { to, status } => {
            route.set("redirect", to.as_str());
            if *status != 302 {
                route.set("redirect_status", *status);
            }
        }
        Action::Answer {
            status,
            body,
            file,
            content_type,
        } => {
            let mut answer = Table::default();
            answer.set("status", *status);
            let texts = [
                ("body", body),
                ("file", file),
                ("content_type", content_type),
            ];
            let may_have = !matches!(status, 204 | 205 | 304);
            for (key, text) in texts
                .into_iter()
                .filter(|(key, text)| !text.is_empty() && (may_have || *key == "content_type"))
            {
                answer.set(key, text.as_str());
            }
            if answer.get("file").is_some() {
                answer.remove("body");
            }
            route.set("answer", answer);
        }
    }
}

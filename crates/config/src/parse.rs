//! From a text to a [`Config`].

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use evenkeel_core::group::Granularity;
use evenkeel_core::strategy::Reach;
use toml::de::{DeTable, DeValue};

use super::document::{Entry, Item, Report, Span, entries, similar};
use super::errors::{Errors, Problem};
use super::fields::{WRONG_TYPE, unknown};
use super::foreign;
use super::keys::{self, AdminDraft, Key, TableDoc};
use super::monitor::{self, Placed, read_locations};
use super::reports::warn_of_twins;
use super::{Config, GroupConfig, MAX_FILE_SIZE, Protocol, Rule, Said, read_bounded};

/// Checks the configuration in `text`. `file` names it in messages, and is where a
/// relative `token_file` starts.
///
/// # Errors
///
/// Everything that is wrong, with its place in the text.
pub fn parse(file: &str, text: &str) -> Result<Config, Errors> {
    let (mut config, warnings) = document(file, text, keys::tables, document_to_config)?;
    config.warnings = warnings;
    Ok(config)
}

/// Reads the document in `text`, whose keys are those of `tables`, with `read`: it gets
/// the top table and the folder of the file. Answers what it made, and the warnings.
pub(super) fn document<T>(
    file: &str,
    text: &str,
    tables: fn() -> Vec<TableDoc>,
    read: impl FnOnce(Table<'_>, &Path, &mut Report<'_>) -> T,
) -> Result<(T, Vec<Problem>), Errors> {
    if text.len() as u64 > MAX_FILE_SIZE {
        let message = format!("is too large: more than {MAX_FILE_SIZE} bytes");
        return Err(Errors::of_file(file.into(), message));
    }
    let mut report = Report::new(file, text, tables);
    let (document, syntax) = DeTable::parse_recoverable(text);
    report.syntax(&syntax, document.get_ref());
    let folder = Path::new(file).parent().unwrap_or(Path::new(""));
    let top = Table::of("", 0..0, entries("", document.get_ref()));
    let found = read(top, folder, &mut report);
    Ok((found, report.finish()?))
}

fn document_to_config(mut top: Table<'_>, folder: &Path, report: &mut Report<'_>) -> Config {
    let mut config = Config::default();
    top.read(keys::TOP, &mut config, report);

    let mut listening = HashMap::new();
    let mut admin = AdminDraft::default();
    let mut admin_span = 0..0;
    if let Some(mut table) = top.table("admin", report) {
        table.read(keys::ADMIN, &mut admin, report);
        admin_span = table.span.clone();
        resolve_token(&mut admin, &table, folder, report);
        table.finish(report);
    }
    config.admin = admin.enabled.then_some(admin.admin);
    if let Some(admin) = &config.admin {
        listens(
            &mut listening,
            admin.listen,
            "the admin API",
            &admin_span,
            "admin",
            report,
        );
    }

    if let Some(mut table) = top.table("access_log", report) {
        table.read(keys::ACCESS_LOG, &mut config, report);
        table.finish(report);
    }

    let mut defaults = Defaults {
        rule: Rule::new("", Vec::new(), ""),
        group: GroupConfig::new("", Vec::new()),
    };
    if let Some(mut table) = top.table("defaults", report) {
        table.read(keys::RULE, &mut defaults.rule, report);
        table.read(keys::GROUP, &mut defaults.group, report);
        table.read(keys::ADDRESSED, &mut defaults.group, report);
        defaults.group.said.note(&table);
        table.finish(report);
    }

    // With where each stands: rules refer to groups, and own ones keep their order.
    let mut groups: Vec<(Span, GroupConfig)> = Vec::new();
    for mut table in top.named_tables("group", NAMES, report) {
        let mut group = GroupConfig {
            name: table.name(),
            ..defaults.group.clone()
        };
        table.read(keys::GROUP_OWN, &mut group, report);
        table.read(keys::GROUP, &mut group, report);
        table.read(keys::ADDRESSED, &mut group, report);
        group.said.note(&table);
        check_alert(&table, &group, report);
        if !group.agents_may_join {
            table.require("members", report);
        }
        warn_of_twins(&group, &table.name_span, &table.path, report);
        groups.push((table.name_span.clone(), group));
        table.finish(report);
    }
    let shared: HashMap<String, Span> = groups
        .iter()
        .map(|(span, group)| (group.name.clone(), span.clone()))
        .collect();

    let mut used = std::collections::HashSet::new();
    for mut table in top.named_tables("rule", NAMES, report) {
        let (rule, own) = read_rule(&mut table, &defaults, &shared, report);
        for address in &rule.listen {
            let span = table.span_of("listen");
            let who = format!("rule {:?}", rule.name);
            listens(
                &mut listening,
                *address,
                &who,
                &span,
                &table.path_of("listen"),
                report,
            );
        }
        if let Some(group) = own {
            groups.push((table.name_span.clone(), group));
        }
        used.insert(rule.group.clone());
        config.rules.push(rule);
        table.finish(report);
    }
    groups.sort_by_key(|(span, _)| span.start);
    let placed = groups.iter().map(|(span, group)| Placed { span, group });
    let placed: Vec<Placed<'_>> = placed.collect();
    // Agents and CORBA servers name locations of their own.
    let others = groups.iter().any(|(_, group)| group.agents_may_join) || top.given("corba");
    config.locations = read_locations(&mut top, &defaults.group, &placed, others, report);
    monitor::check(&placed, &config.locations, report);
    config.groups = groups.iter().map(|(_, group)| group.clone()).collect();
    let of_groups = config.groups.iter_mut().map(|group| &mut group.monitor);
    let of_locations = { &mut config.locations }.iter_mut();
    let monitors = of_groups.chain(of_locations.map(|location| &mut location.monitor));
    monitor::resolve(monitors.flatten(), folder);
    // What clusters have to say below may depend on the load.
    for group in &mut config.groups {
        group.choose(Reach::Carried);
    }
    let carried = used.clone();
    let (negotiator, clusters) =
        super::negotiator::read(&mut top, &config.groups, &mut used, report);
    if let Some(negotiator) = &negotiator {
        for address in &negotiator.listen {
            let (who, path) = ("the negotiator", "negotiator.listen");
            listens(
                &mut listening,
                *address,
                who,
                &top.span_of("negotiator"),
                path,
                report,
            );
        }
    }
    for group in &mut config.groups {
        // Where a rule carries clients, too, what is good for them counts.
        if used.contains(&group.name) && !carried.contains(&group.name) {
            group.choose(Reach::Redirected);
        }
    }
    (config.negotiator, config.clusters) = (negotiator, clusters);
    config.broker = super::broker::read(&mut top, folder, report);
    config.corba = super::corba::read(&mut top, folder, &mut listening, report);
    for (span, group) in &groups {
        if group.agents_may_join && config.broker.is_none() {
            let path = super::document::join("group", &group.name);
            let message = "agents may join this group, but there is no [broker] for them";
            report.warning(span, &path, message.into());
        }
        if !used.contains(&group.name) {
            let path = super::document::join("group", &group.name);
            report.warning(span, &path, "no rule and no cluster uses this group".into());
        }
    }
    top.finish(report);
    config
}

/// What `[defaults]` says.
struct Defaults {
    rule: Rule,
    group: GroupConfig,
}

impl Said {
    /// What a table says that has been read.
    pub(super) fn note(&mut self, table: &Table<'_>) {
        self.strategy |= table.given("strategy");
        self.load |= table.given("load");
        self.granularity |= table.given("granularity");
    }
}

/// Alerts move nobody where nobody is bound.
pub(super) fn check_alert(table: &Table<'_>, group: &GroupConfig, report: &mut Report<'_>) {
    let settings = &group.settings;
    let wants = settings.alert.close_idle.is_some() || settings.alert.move_sessions;
    if table.given("alert") && wants && settings.granularity == Granularity::PerRequest {
        let message = "`close_idle` and `move_sessions` have no effect with granularity \
                       `per_request`: write granularity = \"per_session\" or \"on_demand\""
            .into();
        let (span, path) = (table.span_of("alert"), table.path_of("alert"));
        report.warning(&span, &path, message);
    }
}

/// Keys that only a rule with `protocol = "http"` may have.
const HTTP_ONLY: [&str; 5] = [
    "header_timeout",
    "keep_alive_timeout",
    "body_timeout",
    "response_timeout",
    "http",
];

/// A rule, and the group of its own if it names none.
fn read_rule(
    table: &mut Table<'_>,
    defaults: &Defaults,
    shared: &HashMap<String, Span>,
    report: &mut Report<'_>,
) -> (Rule, Option<GroupConfig>) {
    let mut rule = Rule {
        name: table.name(),
        group: table.name(),
        ..defaults.rule.clone()
    };
    table.read(keys::RULE_OWN, &mut rule, report);
    table.read(keys::RULE, &mut rule, report);
    table.require("listen", report);
    if rule.protocol == Protocol::Tcp {
        for key in HTTP_ONLY.into_iter().filter(|key| table.given(key)) {
            let message = "only a rule with `protocol = \"http\"` has this key".to_owned();
            report.problem(&table.span_of(key), &table.path_of(key), message, None);
        }
    }

    let group_keys = || {
        keys::GROUP_OWN
            .iter()
            .chain(keys::GROUP)
            .chain(keys::ADDRESSED)
            .map(|key| key.name)
    };
    if table.given("group") {
        if !shared.contains_key(&rule.group) {
            unknown_group(table, &rule.group, shared, report);
        }
        for key in group_keys()
            .filter(|key| table.given(key))
            .collect::<Vec<_>>()
        {
            table.know(key);
            let message = format!(
                "belongs in [group.{}], because the rule names a group",
                rule.group
            );
            report.problem(&table.span_of(key), &table.path_of(key), message, None);
        }
        return (rule, None);
    }

    let mut group = GroupConfig {
        name: rule.name.clone(),
        ..defaults.group.clone()
    };
    table.read(keys::GROUP_OWN, &mut group, report);
    table.read(keys::GROUP, &mut group, report);
    table.read(keys::ADDRESSED, &mut group, report);
    group.said.note(table);
    check_alert(table, &group, report);
    warn_of_twins(&group, &table.name_span, &table.path, report);
    match shared.get(&rule.name) {
        Some(_) if !table.given("members") && !group.agents_may_join => {
            let message = format!(
                "names neither `members` nor a `group`; to use [group.{0}], write group = {0:?}",
                rule.name
            );
            report.missing(&table.name_span, &table.path, message, None, table.end());
        }
        Some(span) => {
            let message = format!(
                "a rule with members has a group of its own name, so [group.{}] is a second one: \
                 give one of them another name",
                rule.name
            );
            report.problem(
                span,
                &super::document::join("group", &rule.name),
                message,
                None,
            );
        }
        None if !table.given("members") && !group.agents_may_join => {
            let message = "names neither `members` nor a `group`".into();
            let allowed = r#"members = ["10.0.0.1:80", …], or group = "NAME" with [group.NAME]"#;
            let allowed = Some(allowed.into());
            report.missing(&table.name_span, &table.path, message, allowed, table.end());
        }
        None => {}
    }
    (rule, Some(group))
}

fn unknown_group(
    table: &Table<'_>,
    name: &str,
    shared: &HashMap<String, Span>,
    report: &mut Report<'_>,
) {
    // A thousand rules that name a missing group need no thousand suggestions.
    if report.is_full() {
        return report.omit();
    }
    let mut names: Vec<&str> = shared.keys().map(String::as_str).collect();
    names.sort_unstable();
    let message = unknown("group", similar(name, names.iter().copied()));
    let allowed = match names[..] {
        [] => format!("none, as no group is defined: write [group.{name}] with `members`"),
        _ => {
            let some: Vec<_> = names
                .iter()
                .take(20)
                .map(|name| format!("{name:?}"))
                .collect();
            some.join(", ")
        }
    };
    let (span, path) = (table.span_of("group"), table.path_of("group"));
    report.misplaced(&span, &path, message, Some(allowed));
}

/// Notes that `who` listens on `address`; nobody else may.
pub(super) fn listens(
    listening: &mut HashMap<SocketAddr, String>,
    address: SocketAddr,
    who: &str,
    span: &Span,
    path: &str,
    report: &mut Report<'_>,
) {
    // Port 0 is a different port each time.
    if address.port() == 0 {
        return;
    }
    match listening.get(&address) {
        Some(other) => {
            let message = format!("{other} listens on {address} already");
            report.problem(span, path, message, None);
        }
        None => {
            listening.insert(address, who.into());
        }
    }
}

/// Reads the token's file, and refuses to be open to the network without a token.
fn resolve_token(
    draft: &mut AdminDraft,
    table: &Table<'_>,
    folder: &Path,
    report: &mut Report<'_>,
) {
    if let Some(path) = &draft.token_file {
        let (span, key) = (table.span_of("token_file"), table.path_of("token_file"));
        let path = folder.join(path);
        if draft.admin.token.is_some() {
            let message = "there is a `token`, too: only one of them can be".into();
            report.problem(&span, &key, message, None);
        }
        match read_token(&path) {
            Ok(token) => {
                draft.admin.token = Some(token);
                draft.admin.token_file = Some(path);
            }
            Err(message) => return report.problem(&span, &key, message, None),
        }
    }
    if draft.admin.behind_proxy && draft.admin.token.is_none() && !table.given("token") {
        let message = "without `token` or `token_file` anybody whom the proxy lets through \
                       would administer the balancer"
            .into();
        let (span, path) = (table.span_of("behind_proxy"), table.path_of("behind_proxy"));
        report.misplaced(&span, &path, message, None);
    }
    let exposed = draft.enabled && !draft.admin.listen.ip().is_loopback();
    if exposed && draft.admin.token.is_none() && !table.given("token") {
        let message = format!(
            "{} is not a loopback address, so `token` or `token_file` is required",
            draft.admin.listen
        );
        report.misplaced(
            &table.span_of("listen"),
            &table.path_of("listen"),
            message,
            None,
        );
    }
}

fn read_token(path: &Path) -> Result<String, String> {
    let mode = std::fs::metadata(path).map(|file| file.permissions().mode());
    if mode.is_ok_and(|mode| mode & 0o007 != 0) {
        return Err(format!(
            "{} may be read or written by everybody on this machine: chmod 640, or 600",
            path.display()
        ));
    }
    let text = read_bounded(path, 4096).map_err(|reason| format!("{} {reason}", path.display()))?;
    let token = text.trim();
    if keys::is_token(token) {
        Ok(token.into())
    } else {
        Err(format!(
            "{} does not hold a token: 8 to 512 visible ASCII characters without spaces",
            path.display()
        ))
    }
}

/// A table of the file while it is read.
pub(super) struct Table<'d> {
    /// Path of the table, for messages.
    path: String,
    /// Where the table is.
    span: Span,
    /// Where its name is.
    name_span: Span,
    name: &'d str,
    entries: Vec<Entry<'d>>,
    /// The keys that may stand here.
    known: Vec<&'static str>,
}

impl<'d> Table<'d> {
    /// The table `item`, if it is one.
    pub fn open(item: &Item<'d>) -> Option<Self> {
        match item.value {
            DeValue::Table(table) => {
                let entries = entries(&item.path, table);
                Some(Table::of(&item.path, item.span.clone(), entries))
            }
            _ => None,
        }
    }

    fn of(path: &str, span: Span, entries: Vec<Entry<'d>>) -> Self {
        Table {
            path: path.into(),
            name_span: span.clone(),
            span,
            name: "",
            entries,
            known: Vec::new(),
        }
    }

    /// Reads what the table says of `target`.
    pub fn read<T>(&mut self, keys: &'static [Key<T>], target: &mut T, report: &mut Report<'_>) {
        for key in keys {
            self.know(key.name);
            if let Some(entry) = self.entry(key.name) {
                (key.field)(target).read(&entry.item, &key.limits, report);
            }
        }
    }

    /// Whether `key` stands in the table.
    pub fn given(&self, key: &str) -> bool {
        self.entry(key).is_some()
    }

    /// Reports every key that nobody has asked for.
    pub fn finish(self, report: &mut Report<'_>) {
        for entry in &self.entries {
            if self.known.contains(&entry.name) {
                continue;
            }
            if report.is_full() {
                report.omit();
                continue;
            }
            let theirs = self.meant(entry.name, report);
            let (message, allowed) = match similar(entry.name, self.known.iter().copied()) {
                _ if theirs.is_some() => (theirs.unwrap_or_default(), None),
                Some(similar) => (unknown("key", Some(similar)), None),
                None => match home_of(&report.tables(), entry.name) {
                    Some(home) => (format!("does not belong here, but {home}"), None),
                    None => (unknown("key", None), Some(self.known.join(", "))),
                },
            };
            report.misplaced(&entry.key_span, &entry.item.path, message, allowed);
        }
    }

    /// What a key of another product means here, if it is one.
    fn meant(&self, key: &str, report: &Report<'_>) -> Option<String> {
        let ours = foreign::keys(key);
        let tables = report.tables();
        if let Some(here) = ours.iter().find(|ours| self.known.contains(ours)) {
            let header = format!("[{here}]");
            let is_table = self.path.is_empty() && tables.iter().any(|t| t.header == header);
            let name = match *here {
                "rule" | "group" if self.path.is_empty() => format!("[{here}.NAME]"),
                _ if is_table => header,
                _ => format!("{here:?}"),
            };
            return Some(unknown("key", Some(name)));
        }
        // One of ours in the wrong place says where it belongs.
        let is_ours = tables.iter().any(|t| t.keys.iter().any(|k| k.name == key));
        if is_ours && key != "path" {
            return None;
        }
        let (name, home) = ours
            .iter()
            .find_map(|ours| Some((ours, home_of(&tables, ours)?)))?;
        Some(match home.strip_prefix("is a table") {
            Some(_) => format!("unknown key, did you mean [{name}]?"),
            None => format!("unknown key, did you mean {name:?} {home}?"),
        })
    }

    /// Where the table ends: what is missing in it comes after what is wrong in it.
    fn end(&self) -> usize {
        let ends = self.entries.iter().map(|entry| entry.item.span.end);
        ends.fold(self.span.end, usize::max)
    }

    /// Notes that `key` may stand here.
    pub fn know(&mut self, key: &'static str) {
        self.known.push(key);
    }

    fn entry(&self, key: &str) -> Option<&Entry<'d>> {
        self.entries.iter().find(|entry| entry.name == key)
    }

    /// Path of the table.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Where the name of the table is.
    pub fn name_span(&self) -> &Span {
        &self.name_span
    }

    /// Its name, of the user's choice.
    pub fn name(&self) -> String {
        self.name.to_owned()
    }

    /// Where the value of `key` is, or else the table.
    pub fn span_of(&self, key: &str) -> Span {
        let entry = self.entry(key);
        entry.map_or_else(|| self.span.clone(), |entry| entry.item.span.clone())
    }

    pub fn path_of(&self, key: &str) -> String {
        super::document::join(&self.path, key)
    }

    pub fn require(&self, key: &str, report: &mut Report<'_>) {
        if !self.given(key) {
            let message = format!("`{key}` is missing");
            report.missing(&self.name_span, &self.path, message, None, self.end());
        }
    }

    /// The table called `key` within this one, if it is there.
    pub fn table(&mut self, key: &'static str, report: &mut Report<'_>) -> Option<Table<'d>> {
        self.open_table(key, format!("a table: [{key}]"), report)
    }

    fn open_table(
        &mut self,
        key: &'static str,
        allowed: String,
        report: &mut Report<'_>,
    ) -> Option<Table<'d>> {
        self.know(key);
        let entry = self.entry(key)?;
        let table = Table::open(&entry.item);
        if table.is_none() {
            report.wrong(&entry.item, WRONG_TYPE, allowed);
        }
        table
    }

    /// The tables within the table called `key`, which have names of the user's choice:
    /// what those must be, and whether one is.
    pub fn named_tables(
        &mut self,
        key: &'static str,
        (names, is_name): (&str, fn(&str) -> bool),
        report: &mut Report<'_>,
    ) -> Vec<Table<'d>> {
        let allowed = format!("tables with a name each: [{key}.NAME]");
        let Some(outer) = self.open_table(key, allowed, report) else {
            return Vec::new();
        };
        let mut tables = Vec::new();
        for entry in outer.entries {
            if !is_name(entry.name) {
                let message = "not a name".to_owned();
                let allowed = Some(names.to_owned());
                report.problem(&entry.key_span, &entry.item.path, message, allowed);
                continue;
            }
            match Table::open(&entry.item) {
                Some(table) => tables.push(Table {
                    name_span: entry.key_span,
                    name: entry.name,
                    ..table
                }),
                None => report.wrong(&entry.item, WRONG_TYPE, format!("a table: [{key}.NAME]")),
            }
        }
        tables
    }
}

/// Names that end up in metrics, addresses of the admin API and logs.
pub(super) const NAMES: (&str, fn(&str) -> bool) =
    ("1 to 64 letters, digits, \"-\", \"_\" or \".\"", is_name);

/// Whether a group, a rule or a cluster may be called so: 1 to 64 letters, digits, `-`, `_`
/// or `.`.
pub fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// Where in the file a key would belong.
fn home_of(tables: &[TableDoc], key: &str) -> Option<String> {
    let table = format!("[{key}]");
    // Not every file has rules.
    let has_rules = tables.iter().any(|table| table.header == "[rule.NAME]");
    if has_rules && matches!(key, "rule" | "group") {
        return Some(format!("as [{key}.NAME]"));
    }
    if has_rules && key == "defaults" {
        return Some(format!("is a table of its own: {table}"));
    }
    tables.iter().find_map(|home| match home.header {
        header if header == table => Some(format!("is a table of its own: {table}")),
        _ if !home.keys.iter().any(|known| known.name == key) => None,
        "" => Some("at the top of the file, before the first [table]".into()),
        header if header.contains("group.") => {
            let own = header.replace("group.", "rule.");
            Some(format!("in {own} or {header}"))
        }
        header => Some(format!("in {header}")),
    })
}

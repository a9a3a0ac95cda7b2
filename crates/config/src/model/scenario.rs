//! Scenarios of `evenkeel sim`: the world around a configuration.

use std::path::Path;
use std::time::Duration;

pub use super::scenario_engines::{Engines, PromptKind, Prompts, Router};
use super::scenario_engines::{
    check_event, check_member, describe_tables as describe_engines, read_engines,
};
pub use super::sweep::Sweep;
use super::sweep::{SWEEP, SweepKeys, read_sweep};
use crate::schema::errors::{Errors, Problem, SourcePosition};
use crate::schema::field::{FileName, blank, choices};
use crate::schema::key::{DAY, HOUR, describe_keys, millis, secs, section};
use crate::schema::overrides::Override;
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::source;
use crate::schema::table::{AsTable, LOCATION_NAMES, NAMES, Reading, Table, document_with};

/// Reads and checks the scenario in the file at `path`, with these values in place of its own.
///
/// # Errors
///
/// Everything that is wrong, with its place in the file. A file that is missing,
/// unreadable, too large or not UTF-8 is an error of the same type.
pub fn load_scenario(path: &Path, changes: &[Override]) -> Result<Scenario, Errors> {
    source::load_file(path, |file, text| parse(file, text, changes))
}

/// Reads and checks the scenario in `text`, with the values of `changes` in place of its own. `file` names the
/// text in messages, and is where relative paths start.
///
/// # Errors
///
/// Everything that is wrong, with its place in the text.
pub fn parse(file: &str, text: &str, changes: &[Override]) -> Result<Scenario, Errors> {
    let read =
        |top: Table<'_>, folder: &Path, report: &mut Report<'_>| read(top, folder, text, report);
    let with = Reading {
        changes,
        ..Reading::default()
    };
    let (mut scenario, warnings) = document_with(file, text, with, describe_tables, read)?;
    scenario.warnings = warnings;
    Ok(scenario)
}

/// The most strokes of an event in a run.
const MAX_STROKES: u128 = 100_000;

section! {
    /// A whole, valid scenario.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Scenario {
        /// Offered load.
        load: Load = Load::default(),
        /// Costs of requests.
        service: Service = Service::default(),
        /// Keys of requests.
        keys: Keys = Keys::default(),
        /// Settings of all members.
        members: Members = Members::default(),
        /// Different settings of some members, by name.
        member: Vec<(String, SourcePosition, Model)> = Vec::new(),
        /// Engines of language models, in place of members with workers.
        engines: Option<Engines> = None,
        /// Events that happen to members.
        events: Vec<Event> = Vec::new(),
        /// Load reports; `None` is none.
        reports: Option<Reports> = None,
        /// Parameters that take several values, one after the other.
        sweeps: Vec<Sweep> = Vec::new(),
        /// Place where the group is named, or would be.
        group_place: SourcePosition = SourcePosition::default(),
        /// Place where a load is set.
        load_place: SourcePosition = SourcePosition::default(),
        /// Settings that are allowed but probably not meant.
        warnings: Vec<Problem> = Vec::new(),
    }
    keys TOP {
        /// Configuration of the balancers. A relative path starts at the scenario's folder. **Required.**
        config: FileName = FileName::default(); r#""evenkeel.toml""#,
        /// Group for the requests. You may leave out the key if the configuration has only one group.
        group: Option<String> [Text(NAMES)] = None; r#""web""#,
        /// Length of a run, in virtual time. The first tenth is not measured.
        duration: Duration [Time(secs(1), DAY)] = secs(60); r#""5m""#,
        /// First seed. The same seed gives every strategy the same arrivals, costs and events.
        seed: u32 [Number(0.0, 1e9, "")] = 1; "7",
        /// Number of seeds to run. Set at least two to get results with confidence intervals.
        seeds: usize [Number(1.0, 1000.0, "seeds")] = 1; "20",
        /// Number of balancers with this configuration. Balancers share the members, and know nothing of each
        /// other except by `fleet_in_flight`. Each balancer gets an equal part of the load.
        balancers: usize [Number(1.0, 1000.0, "balancers")] = 1; "2",
        /// Number of members which each balancer may use: the first members for the first balancer, the next
        /// members for the next balancer, and so on around. By default all members.
        view: Option<usize> [Number(1.0, 100_000.0, "members")] = None; "5",
        /// Lets balancers tell each other the number of their requests in flight, as with `in_flight` in
        /// [`[fleet]`](configuration.md#fleet). Set `true` for groups whose `load` is `in_flight`.
        /// Balancers before engines of language models tell each other their work at the engines and the prompts that they
        /// have sent, as each fleet does.
        fleet_in_flight: bool = false; "true",
        /// Time from a balancer to a member, and back.
        network: Duration [Time(Duration::ZERO, secs(10))] = Duration::from_micros(200); r#""1ms""#,
    }
}

section! {
    /// Offered load.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Load {}
    keys LOAD {
        /// Offered load as a share of the members' capacity at the start: requests arrive at random (Poisson)
        /// at this rate, whatever becomes of them. With a value above 1 you ask for more than the members can
        /// do.
        utilisation: f64 [Number(0.001, 10.0, "")] = 0.6; "0.8",
        /// Offered load in sessions per second, instead of `utilisation`.
        rate: Option<f32> [Number(0.001, 1e7, "")] = None; "250",
        /// Number of clients, each with one session after the other (a closed loop), instead of an offered
        /// load.
        clients: Option<usize> [Number(1.0, 1_000_000.0, "clients")] = None; "50",
        /// Number of requests of a session, one after the other.
        requests: usize [Number(1.0, 1_000_000.0, "requests")] = 1; "20",
        /// Mean thinking time of a client (exponential) before the next request, and before the next session.
        think: Duration [Time(Duration::ZERO, HOUR)] = Duration::ZERO; r#""200ms""#,
        /// Unit of balancing: each `request`, or the `connection` of a session, whose requests all go to the
        /// same member.
        level: Level = Level::Request; r#""connection""#,
        /// Mean time (exponential) for which a request stays in flight at the balancer after the member has
        /// done the work. Set a time to model slow clients.
        linger: Duration [Time(Duration::ZERO, HOUR)] = Duration::ZERO; r#""50ms""#,
        /// Times of many more sessions: a table (see below). Not with `clients`.
        burst: Option<Bursts> = None; r#"{ every = "30s", length = "2s", factor = 5 }"#,
        /// Allows an offered load above the capacity of the members. Without `true` you get a warning.
        overload: bool = false; "true",
    }
}

section! {
    /// Times of many more requests.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Bursts {}
    keys BURSTS {
        /// Time from the start of a burst to the start of the next burst.
        every: Duration [Time(millis(1), DAY)] = secs(10); r#""30s""#,
        /// Length of a burst.
        length: Duration [Time(millis(1), DAY)] = secs(1); r#""2s""#,
        /// Factor by which more sessions begin during a burst.
        factor: f64 [Number(0.0, 1000.0, "")] = 3.0; "5",
    }
}

section! {
    /// Costs of requests.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Service {}
    keys SERVICE {
        /// Distribution of the time for which a member of capacity 1 works on a request. Set `sigma` for
        /// `lognormal`, `alpha` for `pareto`, and `file` for `file`.
        distribution: Distribution = Distribution::Exponential; r#""lognormal""#,
        /// Mean time. The mean of `file` is as in the file.
        mean: Duration [Time(Duration::from_micros(1), HOUR)] = millis(10); r#""25ms""#,
        /// Standard deviation of the logarithm of a lognormal time.
        sigma: f64 [Number(0.0, 5.0, "")] = 1.0; "1.5",
        /// Exponent of the tail of a Pareto time. With 2 or less the variance is infinite.
        alpha: f64 [Number(1.01, 100.0, "")] = 2.5; "1.8",
        /// File with a time in each line, for example `12.5ms`. Each request gets a random time of the file.
        /// Empty lines and lines with `#` at the beginning do not count.
        file: Option<FileName> = None; r#""times.txt""#,
        /// Makes members send the head of a response at once and the first byte when the work is done, as servers of
        /// models and events do. The group's `latency` decides which of the two ends a latency.
        streams: bool = false; "true",
        /// Makes requests announce their cost (`cost` of a rule, or of trusted clients), so that strategies count the
        /// cost.
        announced: bool = false; "true",
    }
}

section! {
    /// Keys of requests.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Keys {}
    keys KEYS {
        /// Number of different keys. Strategies with a hash choose by the key; with 1, requests have no key.
        count: usize [Number(1.0, 10_000_000.0, "keys")] = 1; "10000",
        /// Exponent of the popularity of keys: the popularity of rank i is proportional to 1 / i^zipf. Set 0
        /// for equal popularity.
        zipf: f64 [Number(0.0, 5.0, "")] = 0.9; "1.1",
        /// Number of keys in each member's cache: the most recently requested keys. At the start, and after the
        /// member was dead, the cache is empty.
        cache: usize [Number(0.0, 10_000_000.0, "keys")] = 0; "1000",
        /// Cost of a request whose key is in the cache.
        hit: Duration [Time(Duration::ZERO, HOUR)] = millis(1); r#""500us""#,
    }
}

section! {
    /// Behaviour of a member.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Model {}
    keys MODEL {
        /// Speed of the member: twice the capacity is half the time for a request.
        capacity: f64 [Number(0.001, 1000.0, "")] = 1.0; "0.5",
        /// Number of requests on which the member can work at full speed at once.
        concurrency: usize [Number(1.0, 100_000.0, "requests")] = 1; "8",
        /// Treatment of more requests than `concurrency`: with `fifo` requests wait (a pool of workers); with
        /// `sharing` all requests are slower (an event loop, or a thread for each).
        discipline: Discipline = Discipline::Fifo; r#""sharing""#,
        /// Share of the member's requests which fail, at once.
        failing: f64 [Number(0.0, 1.0, "")] = 0.0; "0.05",
    }
}

section! {
    /// Settings of all members.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Members {
        /// Behaviour of each member.
        model: Model = Model::default(),
    }
    keys MEMBERS {
        /// Number of members, instead of the members of the configuration: the first members of the
        /// configuration, or further members like its last one.
        count: Option<usize> [Number(1.0, 100_000.0, "members")] = None; "10",
    }
}

section! {
    /// Event that happens to members.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Event {
        /// Place of the event in the file.
        place: SourcePosition = SourcePosition::default(),
    }
    keys EVENT {
        /// Time of the first occurrence.
        at: Duration [Time(Duration::ZERO, DAY)] = Duration::ZERO; r#""20s""#,
        /// Time between two occurrences. By default the event does not happen again.
        every: Option<Duration> [Time(millis(1), DAY)] = None; r#""10s""#,
        /// Makes `every` and `length` means of exponential times.
        random: bool = false; "true",
        /// Length of the event. By default the event lasts for ever.
        length: Option<Duration> [Time(millis(1), DAY)] = None; r#""2s""#,
        /// Members to which the event may happen, by name or address. By default all.
        members: Vec<String> [Text(LOCATION_NAMES)] = Vec::new(); r#"["10.0.0.1:80"]"#,
        /// Members hit each time: `all` at once, the `next` after the member of the last time, or one at
        /// `random`.
        strikes: Strikes = Strikes::All; r#""next""#,
        /// Factor by which the members are slower.
        slowness: f64 [Number(0.01, 1000.0, "")] = 1.0; "5",
        /// Makes members stand still: connections are accepted, and nothing is done (a pause for garbage collection,
        /// a stopped process).
        pause: bool = false; "true",
        /// Makes members die with all their work, and refuse connections.
        dead: bool = false; "true",
        /// Share of requests which the members fail.
        failing: f64 [Number(0.0, 1.0, "")] = 0.0; "0.5",
        /// Number of tasks of somebody else which occupy the members' workers all the time (an antagonist on
        /// the machine).
        tasks: f64 [Number(0.0, 10_000.0, "")] = 0.0; "4",
    }
}

section! {
    /// Load reports of members.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Reports {}
    keys REPORTS {
        /// Time between two reports of a member.
        interval: Duration [Time(millis(1), HOUR)] = secs(1); r#""100ms""#,
        /// Travel time of a report.
        delay: Duration [Time(Duration::ZERO, HOUR)] = millis(1); r#""50ms""#,
        /// Additional travel time of a report, by chance. Reports may overtake each other.
        jitter: Duration [Time(Duration::ZERO, HOUR)] = Duration::ZERO; r#""20ms""#,
        /// Share of the reports lost on the way to a balancer.
        loss: f64 [Number(0.0, 1.0, "")] = 0.0; "0.1",
        /// Maximum error of a value, as a share of the value, by chance.
        noise: f64 [Number(0.0, 1.0, "")] = 0.0; "0.2",
    }
}

impl AsTable for Bursts {
    const ALLOWED: &'static str = "a table of bursts";

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(BURSTS, self, report);
        if self.length >= self.every {
            table.report_problem("length", "must be shorter than `every`", report);
        }
    }
}
blank!(Bursts);

choices! {
    /// Unit of balancing.
    Level {
        /// Each request.
        "request" => Request,
        /// Each connection.
        "connection" => Connection,
    }
    /// Distribution of service times.
    Distribution {
        /// All the same.
        "constant" => Constant,
        /// Exponential times.
        "exponential" => Exponential,
        /// Times whose logarithms are normal.
        "lognormal" => Lognormal,
        /// A power law.
        "pareto" => Pareto,
        /// Times from a file.
        "file" => File,
    }
    /// Treatment of more requests than a member can work on.
    Discipline {
        /// Requests wait.
        "fifo" => Fifo,
        /// All are slower.
        "sharing" => Sharing,
    }
    /// Members hit by an event.
    Strikes {
        /// All at once.
        "all" => All,
        /// Next member after the last.
        "next" => Next,
        /// Random member.
        "random" => Random,
    }
}

fn read(mut top: Table<'_>, folder: &Path, text: &str, report: &mut Report<'_>) -> Scenario {
    let mut scenario = Scenario::default();
    top.read(TOP, &mut scenario, report);
    top.require("config", report);
    scenario.config.resolve(folder);
    scenario.group_place = report.place_of(&top.span_of("group"), &top.path_of("group"));
    scenario.load_place = report.place_of(&top.span_of("load"), &top.path_of("load"));
    scenario.engines = read_engines(&mut top, folder, report);
    let has_engines = scenario.engines.is_some();
    if let Some(mut table) = top.read_table("load", report) {
        read_load(&mut table, &mut scenario.load, report);
        table.report_unread(report);
    }
    if let Some(mut table) = top.read_table("service", report) {
        read_service(&mut table, &mut scenario.service, folder, report);
        table.report_unread(report);
    }
    if let Some(mut table) = top.read_table("keys", report) {
        let keys = &mut scenario.keys;
        table.read(KEYS, keys, report);
        if keys.cache > 0 && keys.count == 1 {
            table.report_problem("cache", "needs more than one key: set `count`", report);
        }
        if table.has_key("hit") && keys.cache == 0 {
            table.report_problem("hit", "has no effect without `cache`", report);
        }
        table.report_unread(report);
    }
    if let Some(mut table) = top.read_table("members", report) {
        table.read(MEMBERS, &mut scenario.members, report);
        table.read(MODEL, &mut scenario.members.model, report);
        if has_engines {
            check_member(&table, report);
        }
        table.report_unread(report);
    }
    for mut table in top.named_tables("member", LOCATION_NAMES, report) {
        let mut model = scenario.members.model;
        table.read(MODEL, &mut model, report);
        if has_engines {
            check_member(&table, report);
        }
        let place = report.place_of(table.name_span(), table.path());
        scenario.member.push((table.name(), place, model));
        table.report_unread(report);
    }
    for mut table in top.read_tables("event", report) {
        let event = read_event(&mut table, scenario.duration, report);
        if has_engines {
            check_event(&table, report);
        }
        scenario.events.push(event);
        table.report_unread(report);
    }
    if let Some(mut table) = top.read_table("reports", report) {
        let mut reports = Reports::default();
        table.read(REPORTS, &mut reports, report);
        scenario.reports = Some(reports);
        table.report_unread(report);
    }
    for mut table in top.read_tables("sweep", report) {
        if let Some(sweep) = read_sweep(&mut table, text, report) {
            scenario.sweeps.push(sweep);
        }
        table.report_unread(report);
    }
    if scenario.sweeps.len() > 2 {
        top.report_problem("sweep", "there may be at most two [[sweep]]", report);
    }
    top.report_unread(report);
    scenario
}

fn read_load(table: &mut Table<'_>, load: &mut Load, report: &mut Report<'_>) {
    table.read(LOAD, load, report);
    for (one, other) in [
        ("utilisation", "rate"),
        ("utilisation", "clients"),
        ("rate", "clients"),
        ("burst", "clients"),
    ] {
        if table.has_key(one) && table.has_key(other) {
            let message = format!("`{one}` and `{other}` exclude each other: leave one out");
            table.report_problem(other, message, report);
        }
    }
    if load.level == Level::Connection && load.requests == 1 {
        let message = "makes no difference while a session has one request: set `requests`";
        table.report_problem("level", message, report);
    }
    if load.level == Level::Connection && load.linger > Duration::ZERO {
        table.report_problem("linger", "is for requests, not for connections", report);
    }
}

fn read_service(
    table: &mut Table<'_>,
    service: &mut Service,
    folder: &Path,
    report: &mut Report<'_>,
) {
    table.read(SERVICE, service, report);
    if let Some(file) = &mut service.file {
        file.resolve(folder);
    }
    for (key, of, name) in [
        ("sigma", Distribution::Lognormal, "lognormal"),
        ("alpha", Distribution::Pareto, "pareto"),
        ("file", Distribution::File, "file"),
    ] {
        if table.has_key(key) && service.distribution != of {
            let message = format!("has no effect without `distribution = {name:?}`");
            table.report_problem(key, message, report);
        }
    }
    if service.distribution == Distribution::File {
        table.require("file", report);
        if table.has_key("mean") {
            table.report_problem("mean", "is that of the times in `file`", report);
        }
    }
}

fn read_event(table: &mut Table<'_>, duration: Duration, report: &mut Report<'_>) -> Event {
    let mut event = Event::default();
    table.read(EVENT, &mut event, report);
    event.place = report.place_of(&table.span_of(""), table.path());
    const EFFECTS: [&str; 5] = ["slowness", "pause", "dead", "failing", "tasks"];
    if !EFFECTS.iter().any(|effect| table.has_key(effect)) {
        let names = EFFECTS.map(|name| format!("`{name}`")).join(", ");
        let message = format!("does nothing: set one of {names}");
        report.add_problem(&table.span_of(""), table.path(), message, None);
    }
    if event.at >= duration && table.has_key("at") {
        table.report_problem("at", "is after the end: see `duration`", report);
    }
    let left = duration.saturating_sub(event.at).as_nanos();
    if let Some(every) = event.every
        && left / every.as_nanos().max(1) > MAX_STROKES
    {
        let message = format!("happens more than {MAX_STROKES} times: make it longer");
        table.report_problem("every", message, report);
    }
    if event.random && event.every.is_none() && event.length.is_none() {
        table.report_problem(
            "random",
            "has no effect without `every` or `length`",
            report,
        );
    }
    let ends = event
        .length
        .is_some_and(|length| Some(length) < event.every);
    if event.every.is_some() && !ends && event.strikes == Strikes::All && !event.random {
        let message = "needs a shorter `length`: otherwise the event never ends";
        table.report_problem("every", message, report);
    }
    event
}

/// The tables, for the reference and the hints.
pub(crate) fn describe_tables() -> Vec<TableDoc> {
    let top = "Keys before the first table.";
    let load = "Offered load: requests at random, or clients which wait for answers.";
    let burst = "Times of many more sessions.";
    let service = "Costs of requests for the members.";
    let keys = "Keys of requests, of different popularity, and the members' caches of keys.";
    let members = "Behaviour of members. Members, weights and limits come from the configuration.";
    let member = "Different settings of one member. Name the member as in `evenkeel ctl members`: by name or \
                  address, as in `[member.\"10.0.0.1:80\"]`. You can set the keys of `[members]` except \
                  `count`; keys which you leave out are as in `[members]`.";
    let event = "An event of members, once or again and again. You may write many events; overlapping events \
                 add up.";
    let reports = "Load reports: each member reports the group's `load` to all balancers: the number of requests \
                   for `in_flight`, for other loads the busy share of its workers' time; and its requests and \
                   errors per second. If you leave the table out, nothing is reported.";
    let sweep = "A parameter with several values. You get a run for each value, and with two `[[sweep]]` a run \
                 for each pair.";
    let [engines, prompts] = describe_engines();
    vec![
        TableDoc::new("", top, [describe_keys(TOP, Scenario::default())]),
        TableDoc::new("[load]", load, [describe_keys(LOAD, Load::default())]),
        TableDoc::new(
            "[load.burst]",
            burst,
            [describe_keys(BURSTS, Bursts::default())],
        ),
        TableDoc::new(
            "[service]",
            service,
            [describe_keys(SERVICE, Service::default())],
        ),
        TableDoc::new("[keys]", keys, [describe_keys(KEYS, Keys::default())]),
        TableDoc::new(
            "[members]",
            members,
            [
                describe_keys(MEMBERS, Members::default()),
                describe_keys(MODEL, Model::default()),
            ],
        ),
        TableDoc::new(
            "[member.NAME]",
            member,
            [describe_keys(MODEL, Model::default())],
        ),
        engines,
        prompts,
        TableDoc::new("[[event]]", event, [describe_keys(EVENT, Event::default())]),
        TableDoc::new(
            "[reports]",
            reports,
            [describe_keys(REPORTS, Reports::default())],
        ),
        TableDoc::new(
            "[[sweep]]",
            sweep,
            [describe_keys(SWEEP, SweepKeys::default())],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(text: &str) -> String {
        let text = format!("config = \"evenkeel.toml\"\n{text}");
        parse("s.toml", &text, &[]).unwrap_err().to_string()
    }

    #[test]
    fn everything_is_where_it_belongs() {
        let text = r#"
            config = "evenkeel.toml"
            seeds = 3
            [load]
            rate = 100
            burst = { factor = 2 }
            [members]
            concurrency = 4
            [member."10.0.0.1:80"]
            capacity = 0.5
            [[event]]
            at = "10s"
            length = "1s"
            pause = true
            [[sweep]]
            key = "load.rate"
            values = [50, 1.5e2]
            [[sweep]]
            key = "config.group.web.strategy"
            values = ["random", { name = "least_request", choices = 3 }]
        "#;
        let scenario = parse("dir/s.toml", text, &[]).unwrap();
        assert_eq!(scenario.config.path, Path::new("dir/evenkeel.toml"));
        let (name, _, model) = &scenario.member[0];
        assert_eq!(name, "10.0.0.1:80");
        assert_eq!((model.capacity, model.concurrency), (0.5, 4));
        assert!(scenario.events[0].pause);
        let swept = &scenario.sweeps[0].values[1];
        assert_eq!(swept.value(), "1.5e2");
        let with = parse("dir/s.toml", text, std::slice::from_ref(swept)).unwrap();
        assert_eq!(with.load.rate, Some(150.0));
        assert_eq!(with.load.burst.unwrap().factor, 2.0);
        assert!(scenario.sweeps[1].of_config);
        let config = "[rule.w]\nlisten = \"127.0.0.1:80\"\ngroup = \"web\"\n\
                      [group.web]\nmembers = [\"a:1\"]\n";
        let strategy = |change: &Override| {
            let config = crate::parse_with("e.toml", config, std::slice::from_ref(change));
            config.unwrap().groups[0].strategy.kind().name
        };
        let values = scenario.sweeps[1].values.iter();
        assert_eq!(
            values.map(strategy).collect::<Vec<_>>(),
            ["random", "least_request"]
        );
    }

    #[test]
    fn all_errors_come_at_once_with_their_lines() {
        let all = errors(
            "duration = \"5\"\n[load]\nutilization = 0.5\nthink = \"2d\"\n[[event]]\npause = 1\n",
        );
        for expected in [
            "s.toml:2:12: duration: a time needs a unit",
            "s.toml:4:1: load.utilization: unknown key, did you mean \"utilisation\"?",
            "s.toml:5:9: load.think: out of range",
            "s.toml:7:9: event[0].pause: wrong type",
        ] {
            assert!(all.contains(expected), "{expected} in\n{all}");
        }
        assert!(
            parse("s.toml", "", &[])
                .unwrap_err()
                .to_string()
                .contains("`config` is missing")
        );
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (text, expected) in [
            ("[load]\nutilisation = 0.5\nrate = 5", "exclude each other"),
            ("[load]\nclients = 5\nburst = {}", "exclude each other"),
            ("[load]\nburst = { every = \"1s\" }", "shorter than `every`"),
            ("[load]\nlevel = \"connection\"", "set `requests`"),
            ("[service]\nsigma = 2", "`distribution = \"lognormal\"`"),
            ("[service]\ndistribution = \"file\"", "`file` is missing"),
            ("[keys]\ncache = 5", "more than one key"),
            ("[keys]\ncount = 5\nhit = \"1ms\"", "without `cache`"),
            ("[[event]]\nat = \"1s\"", "does nothing"),
            ("[[event]]\nat = \"2m\"\ndead = true", "after the end"),
            (
                "[[event]]\nevery = \"1s\"\ndead = true",
                "needs a shorter `length`",
            ),
            (
                "duration = \"1d\"\n[[event]]\nevery = \"1ms\"\nlength = \"1h\"\nrandom = true\ndead = true",
                "more than 100000 times",
            ),
            (
                "[[sweep]]\nkey = \"seeds\"\nvalues = [1]",
                "cannot be swept",
            ),
            ("[[sweep]]\nkey = \"a b\"\nvalues = [1]", "not valid here"),
            ("[[sweep]]\nkey = \"load.rate\"\nvalues = []", "too few"),
            ("[[sweep]]\nkey = \"load.rate\"", "`values` is missing"),
            ("[members]\nrate = 5", "in [load]"),
            ("[prompts]\nrate = 5", "are for engines"),
            ("[engines]\n[load]\nrate = 5", "set `[prompts]`"),
            (
                "[engines]\n[members]\nconcurrency = 5",
                "no effect with `[engines]`",
            ),
            (
                "[engines]\n[[event]]\ndead = true",
                "no effect with `[engines]`",
            ),
            (
                "[engines]\n[prompts]\nkind = \"trace\"",
                "`file` is missing",
            ),
            (
                "[engines]\n[prompts]\nturns = 5",
                "no effect with this `kind`",
            ),
        ] {
            let found = errors(text);
            assert!(found.contains(expected), "{text}: {found}");
        }
    }

    #[test]
    fn a_bad_value_of_a_sweep_is_told_where_it_stands() {
        let text = "config = \"e.toml\"\n[[sweep]]\nkey = \"load.rate\"\nvalues = [1, -1]\n\
                    [[sweep]]\nkey = \"config.group.web.strategy\"\nvalues = [\"randm\"]\n";
        let scenario = parse("s.toml", text, &[]).unwrap();
        let [rates, strategies] = &scenario.sweeps[..] else {
            panic!("{:?}", scenario.sweeps);
        };
        let bad = parse("s.toml", text, &rates.values[1..])
            .unwrap_err()
            .to_string();
        assert!(
            bad.starts_with("s.toml:4:14: load.rate: out of range; found -1"),
            "{bad}"
        );
        let config = "[rule.w]\nlisten = \"127.0.0.1:80\"\ngroup = \"web\"\n\
                      [group.web]\nmembers = [\"a:1\"]\n";
        let bad = crate::parse_with("e.toml", config, &strategies.values);
        let bad = bad.unwrap_err().to_string();
        assert!(
            bad.starts_with("s.toml:7:11: group.web.strategy: unknown"),
            "{bad}"
        );
    }
}

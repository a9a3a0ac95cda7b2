//! Each key of a scenario changes the result.

use super::*;
use crate::experiment::plan::load_plan;

const CONFIG: &str = r#"
[rule.web]
listen = "127.0.0.1:8080"
members = ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]
strategy = "round_robin"
"#;

/// A folder with a configuration and scenarios, which is removed in the end.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("evenkeel-sim-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn plan(&self, config: &str, scenario: &str) -> Result<Plan, String> {
        std::fs::write(self.0.join("evenkeel.toml"), config).unwrap();
        let path = self.0.join("scenario.toml");
        let text = format!("config = \"evenkeel.toml\"\n{scenario}");
        std::fs::write(&path, text).unwrap();
        let folder = format!("{}/", self.0.display());
        load_plan(&path, None, None).map_err(|errors| errors.to_string().replace(&folder, ""))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn plan_with(config: &str, scenario: &str) -> Plan {
    Folder::new().plan(config, scenario).unwrap()
}

fn errors(scenario: &str) -> String {
    Folder::new().plan(CONFIG, scenario).err().unwrap()
}

/// The figures of the first world, by name.
fn figures_with(config: &str, scenario: &str) -> impl Fn(&str) -> f64 + use<> {
    let plan = plan_with(config, scenario);
    let results = run(&plan, &|_| ());
    let means = Mean::of_runs(&results[0].runs);
    move |name: &str| {
        let index = FIGURES.iter().position(|figure| figure.name == name);
        means[index.unwrap()].mean
    }
}

fn figures(scenario: &str) -> impl Fn(&str) -> f64 + use<> {
    figures_with(CONFIG, scenario)
}

fn first(scenario: &str) -> Course {
    run(&plan_with(CONFIG, scenario), &|_| ()).remove(0).first
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let text = "duration = \"10s\"\nseeds = 3\nbalancers = 2\n[service]\ndistribution = \"lognormal\"\n\
                [[event]]\nevery = \"3s\"\nlength = \"1s\"\nrandom = true\nslowness = 3\n\
                [reports]\nloss = 0.2\njitter = \"50ms\"\n\
                [[sweep]]\nkey = \"config.rule.web.strategy\"\nvalues = [\"adaptive\", \"random\"]\n";
    let all = |text: &str| {
        let plan = plan_with(CONFIG, text);
        let results = run(&plan, &|_| ());
        let file = plan.file.clone();
        let all = export::to_json(&plan, &results) + &html::html_page(&plan, &results);
        all.replace(&file, "")
            + &export::to_csv(&plan, &results)
            + &text::format_tables(&plan, &results).replace(&file, "")
    };
    assert!(all(text) == all(text));
    assert!(all(text) != all(&format!("seed = 2\n{text}")));
}

#[test]
fn random_arrivals_and_exponential_times_are_as_queueing_theory_has_them() {
    let config = CONFIG.replace("round_robin", "random");
    let found = figures_with(&config, "duration = \"30m\"\nnetwork = \"0s\"\n");
    // M/M/1 at 60 %: 1 / (1 - 0.6) times 10 ms.
    assert!(
        (found("mean_ms") / 25.0 - 1.0).abs() < 0.05,
        "{}",
        found("mean_ms")
    );
    assert!((found("utilisation") - 0.6).abs() < 0.02);
    assert!((found("answered_per_second") / 180.0 - 1.0).abs() < 0.03);
}

#[test]
fn capacity_and_concurrency_are_those_of_each_member() {
    let plan = plan_with(
        CONFIG,
        "[members]\nconcurrency = 2\n[member.\"10.0.0.2:80\"]\ncapacity = 3\n",
    );
    assert!((plan.points[0].capacity - 1000.0).abs() < 1e-6);
    let slow = figures("duration = \"20s\"\n[load]\nrate = 60\n[members]\ncapacity = 0.5\n");
    let fast = figures("duration = \"20s\"\n[load]\nrate = 60\n[members]\ncapacity = 2\n");
    assert!(slow("mean_ms") > 3.0 * fast("mean_ms"));
}

#[test]
fn members_may_be_more_or_fewer_than_in_the_configuration() {
    for (count, names) in [(1, 1), (5, 5)] {
        let plan = plan_with(CONFIG, &format!("[members]\ncount = {count}\n"));
        assert_eq!(plan.points[0].members.len(), names);
        let results = run(&plan, &|_| ());
        let used = results[0].first.shares.iter().filter(|share| **share > 0.0);
        assert_eq!(used.count(), names);
    }
}

#[test]
fn a_pause_lets_a_queue_grow_that_is_worked_off_afterwards() {
    let course = first(
        "duration = \"20s\"\n[load]\nutilisation = 0.3\n[[event]]\nat = \"10s\"\nlength = \"2s\"\n\
         members = [\"10.0.0.2:80\"]\npause = true\n",
    );
    let most = |member: usize, from: u64, to: u64| {
        let range = Duration::from_secs(from)..Duration::from_secs(to);
        let within = course.samples.iter().filter(|at| range.contains(&at.at));
        within.map(|at| at.members[member].in_flight).max().unwrap()
    };
    // 30 requests per second for each member, two seconds long.
    assert!((40..80).contains(&most(1, 10, 13)), "{}", most(1, 10, 13));
    assert!(most(0, 10, 13) < 15 && most(1, 1, 10) < 15 && most(1, 18, 20) < 15);
}

#[test]
fn a_dead_member_refuses_and_its_requests_are_tried_elsewhere() {
    let event = "duration = \"20s\"\n[[event]]\nat = \"5s\"\nlength = \"5s\"\n\
                 members = [\"10.0.0.1:80\"]\ndead = true\n";
    let found = figures(event);
    assert!(found("retries") > 0.0 && found("ejections") > 0.0);
    assert!(found("failed_share") < 0.01);
    assert_eq!(figures("duration = \"20s\"\n")("retries"), 0.0);
}

#[test]
fn failing_members_fail_and_antagonists_slow_down() {
    let config = format!("{CONFIG}connect_retries = 0\nhttp = {{ retries = 0 }}\n");
    let failing = figures_with(
        &config,
        "duration = \"20s\"\n[[event]]\nat = \"0s\"\nfailing = 0.1\n",
    );
    assert!(
        (failing("failed_share") - 0.1).abs() < 0.03,
        "{}",
        failing("failed_share")
    );
    let text =
        "duration = \"20s\"\n[load]\nutilisation = 0.2\n[members]\ndiscipline = \"sharing\"\n";
    let alone = figures(text);
    let shared = figures(&format!("{text}[[event]]\nat = \"0s\"\ntasks = 2\n"));
    assert!(shared("p50_ms") > 2.0 * alone("p50_ms"));
}

#[test]
fn all_members_slow_at_once_are_worse_than_one_after_the_other() {
    let text = |strikes| {
        format!(
            "duration = \"60s\"\n[load]\nutilisation = 0.4\n[[event]]\nevery = \"5s\"\nlength = \"1s\"\n\
             slowness = 8\nstrikes = \"{strikes}\"\n"
        )
    };
    let (all, next) = (figures(&text("all")), figures(&text("next")));
    assert!(all("mean_ms") > 1.5 * next("mean_ms"));
}

#[test]
fn bursts_bring_more_requests_for_their_time() {
    let course = first(
        "duration = \"60s\"\n[load]\nutilisation = 0.2\nburst = { every = \"10s\", length = \"2s\", factor = 3 }\n",
    );
    let answered = |is_burst: bool| {
        let within = course.samples.iter().filter(|sample| {
            let phase = (sample.at.as_millis() % 10_000) as i64;
            // A sample is over the 300 ms before it; and a little later all is calm again.
            match is_burst {
                true => phase > 8_300,
                false => (1_000..8_000).contains(&phase),
            }
        });
        let (sum, count) = within.fold((0, 0), |(sum, count), at| (sum + at.answered, count + 1));
        sum as f64 / f64::from(count)
    };
    let ratio = answered(true) / answered(false);
    assert!((2.5..3.5).contains(&ratio), "{ratio}");
}

#[test]
fn clients_in_a_closed_loop_wait_for_answers_and_think() {
    let text = |think| {
        format!(
            "duration = \"30s\"\nnetwork = \"0s\"\n[load]\nclients = 30\nthink = \"{think}\"\n\
             [service]\ndistribution = \"constant\"\n"
        )
    };
    let busy = figures(&text("0s"));
    assert!((busy("answered_per_second") / 300.0 - 1.0).abs() < 0.02);
    let idle = figures(&text("1s"));
    assert!(
        (idle("answered_per_second") / 29.5 - 1.0).abs() < 0.1,
        "{}",
        idle("answered_per_second")
    );
}

#[test]
fn connections_stay_with_their_member_and_requests_do_not() {
    let text = |level| {
        format!(
            "duration = \"30s\"\nnetwork = \"0s\"\n[load]\nrate = 0.4\nrequests = 500\nthink = \"10ms\"\n\
             level = \"{level}\"\noverload = true\n[service]\nmean = \"1ms\"\n"
        )
    };
    let (connections, requests) = (figures(&text("connection")), figures(&text("request")));
    assert!(requests("requests") > 1000.0 && connections("requests") > 1000.0);
    // Few connections with many requests each are spread less evenly.
    assert!(
        connections("unevenness") > 1.5 * requests("unevenness"),
        "{} {}",
        connections("unevenness"),
        requests("unevenness")
    );
}

#[test]
fn popular_keys_make_hashing_uneven_and_caches_make_it_fast() {
    let config = CONFIG.replace("round_robin", "hash");
    let keys = |zipf: f64, cache: usize| {
        format!(
            "duration = \"60s\"\n[load]\nutilisation = 0.3\n[service]\ndistribution = \"constant\"\n\
             [keys]\ncount = 300\nzipf = {zipf}\ncache = {cache}\n"
        )
    };
    let share = |zipf| {
        let plan = plan_with(&config, &keys(zipf, 0));
        let shares = run(&plan, &|_| ()).remove(0).first.shares;
        shares.iter().copied().fold(0.0, f64::max)
    };
    assert!(
        share(2.0) > 0.48 && share(0.0) < 0.42,
        "{} {}",
        share(2.0),
        share(0.0)
    );
    // Each member keeps a third of the keys at hand: its own, or a third of all.
    let hashed = figures_with(&config, &keys(0.0, 120));
    let spread = figures(&keys(0.0, 120));
    assert!(
        hashed("p50_ms") < 0.5 * spread("p50_ms"),
        "{} {}",
        hashed("p50_ms"),
        spread("p50_ms")
    );
}

#[test]
fn caches_are_cold_again_after_a_death() {
    let found = |event: &str| {
        figures(&format!(
            "duration = \"60s\"\nnetwork = \"0s\"\n[load]\nutilisation = 0.1\n[service]\ndistribution = \"constant\"\n\
             [keys]\ncount = 50\nzipf = 0\ncache = 50\n{event}"
        ))
    };
    let warm = found("");
    let died = found("[[event]]\nat = \"20s\"\nevery = \"2s\"\nlength = \"100ms\"\ndead = true\n");
    assert!(warm("mean_ms") < 1.5, "{}", warm("mean_ms"));
    assert!(
        died("mean_ms") > 1.5 * warm("mean_ms"),
        "{}",
        died("mean_ms")
    );
}

#[test]
fn each_balancer_uses_only_its_view() {
    let plan = plan_with(CONFIG, "duration = \"10s\"\nbalancers = 1\nview = 2\n");
    let shares = run(&plan, &|_| ()).remove(0).first.shares;
    assert_eq!(shares[2], 0.0);
    assert!(shares[0] > 0.4 && shares[1] > 0.4);
    let plan = plan_with(CONFIG, "duration = \"10s\"\nbalancers = 3\nview = 1\n");
    let shares = run(&plan, &|_| ()).remove(0).first.shares;
    assert!(
        shares.iter().all(|share| (0.2..0.5).contains(share)),
        "{shares:?}"
    );
}

#[test]
fn reports_that_are_late_are_worse_than_good_ones_and_lost_ones_are_no_reports() {
    let config = CONFIG.replace("\"round_robin\"", "\"least_loaded\"\nload = \"in_flight\"");
    let found = |reports: &str| {
        let text = format!(
            "duration = \"60s\"\nbalancers = 4\n[reports]\ninterval = \"20ms\"\n{reports}\
             [[event]]\nat = \"0s\"\nslowness = 3\nmembers = [\"10.0.0.1:80\"]\n[load]\nrate = 120\n"
        );
        figures_with(&config, &text)("p99_ms")
    };
    let good = found("delay = \"1ms\"\n");
    for bad in ["delay = \"1s\"\n", "jitter = \"2s\"\n"] {
        assert!(found(bad) > 1.2 * good, "{bad}: {} {good}", found(bad));
    }
    // With all of them lost nothing is known of the members.
    assert_ne!(found("loss = 1.0\n"), good);
}

#[test]
fn times_come_from_a_file_whose_bad_lines_are_told() {
    let folder = Folder::new();
    let text = "duration = \"20s\"\nnetwork = \"0s\"\n[load]\nutilisation = 0.05\n\
                [service]\ndistribution = \"file\"\nfile = \"times.txt\"\n";
    let missing = folder.plan(CONFIG, text).err().unwrap();
    assert!(
        missing.contains("scenario.toml:8:8: service.file: times.txt: cannot be read"),
        "{missing}"
    );
    std::fs::write(folder.0.join("times.txt"), "5ms\nfast\n\n# no\n7\n").unwrap();
    let bad = folder.plan(CONFIG, text).err().unwrap();
    assert!(
        bad.contains("times.txt:2:1: not a time; found \"fast\""),
        "{bad}"
    );
    assert!(bad.contains("times.txt:5:1: not a time"), "{bad}");
    std::fs::write(folder.0.join("times.txt"), "4ms\n4ms\n").unwrap();
    let plan = folder.plan(CONFIG, text).unwrap();
    let results = run(&plan, &|_| ());
    let p50 = results[0]
        .first
        .quantiles
        .iter()
        .find(|(share, _)| *share == 0.5);
    assert_eq!(p50.unwrap().1, Duration::from_millis(4));
}

#[test]
fn g6_members_are_called_by_their_name_or_address() {
    let config = CONFIG.replace(
        "\"10.0.0.1:80\"",
        "{ address = \"10.0.0.1:80\", name = \"s1\" }",
    );
    let usual = plan_with(&config, "").points.remove(0);
    assert_eq!(usual.members, ["s1", "10.0.0.2:80", "10.0.0.3:80"]);
    for name in ["s1", "10.0.0.1:80"] {
        let scenario = format!(
            "[member.\"{name}\"]\ncapacity = 4\n[[event]]\nat = \"1s\"\ndead = true\nmembers = [\"{name}\"]\n"
        );
        let point = plan_with(&config, &scenario).points.remove(0);
        // Three members with one part each, or one of them with four.
        assert_eq!(point.capacity, usual.capacity * 2.0, "{name}");
        assert_eq!(point.events[0].members, [0], "{name}");
    }
    let both = "[member.s1]\ncapacity = 4\n[member.\"10.0.0.1:80\"]\ncapacity = 2\n";
    let refused = Folder::new().plan(&config, both).err().unwrap();
    assert!(refused.contains("s1 has a table already"), "{refused}");
}

#[test]
fn what_does_not_fit_the_configuration_is_told_with_its_place() {
    let all = errors(
        "[member.\"10.0.0.9:80\"]\ncapacity = 2\n[[event]]\nat = \"1s\"\ndead = true\nmembers = [\"x\"]\n",
    );
    assert!(
        all.contains("scenario.toml:2:9: member.\"10.0.0.9:80\": group \"web\" has no member"),
        "{all}"
    );
    assert!(
        all.contains("scenario.toml:4:") && all.contains("has no member \"x\", but 10.0.0.1:80,"),
        "{all}"
    );
    let none = errors("group = \"shop\"\n");
    assert!(
        none.contains("scenario.toml:2:9: group: the configuration has no such group, but web"),
        "{none}"
    );
    let bad =
        errors("[[sweep]]\nkey = \"config.rule.web.strategy\"\nvalues = [\"randm\", \"rr\"]\n");
    assert!(
        bad.contains("scenario.toml:4:11") && bad.contains("scenario.toml:4:20"),
        "{bad}"
    );
    let folder = Folder::new();
    let broken = folder.plan("[rule.web]\nlisten = 1\n", "").err().unwrap();
    assert!(broken.contains("evenkeel.toml:2:10"), "{broken}");
}

#[test]
fn more_than_members_can_serve_is_a_warning_unless_it_is_meant() {
    let warnings = |text: &str| plan_with(CONFIG, text).warnings;
    let warned = warnings("[load]\nrate = 500\n");
    assert!(
        warned[0]
            .message
            .contains("asks for 500 requests per second of members that can serve 300")
    );
    assert!(warnings("[load]\nrate = 500\noverload = true\n").is_empty());
    assert!(warnings("[load]\nrate = 200\n").is_empty());
    let burst = "[load]\nrate = 200\nburst = { every = \"4s\", length = \"1s\", factor = 9 }\n";
    assert_eq!(warnings(burst).len(), 1);
}

#[test]
fn sweeps_pair_their_values_and_use_the_strategies_of_the_configuration() {
    let plan = plan_with(
        CONFIG,
        "duration = \"10s\"\nseeds = 2\n[[sweep]]\nkey = \"load.utilisation\"\nvalues = [0.3, 0.6]\n\
         [[sweep]]\nkey = \"config.rule.web.strategy\"\nvalues = [\"random\", \"least_request\"]\n",
    );
    let values: Vec<String> = plan
        .points
        .iter()
        .map(|point| point.values.join(" "))
        .collect();
    assert_eq!(
        values,
        [
            "0.3 random",
            "0.3 least_request",
            "0.6 random",
            "0.6 least_request"
        ]
    );
    let results = run(&plan, &|_| ());
    assert_eq!(
        results[3]
            .runs
            .iter()
            .map(|run| run.seed)
            .collect::<Vec<_>>(),
        [1, 2]
    );
    let p99 = |index: usize| Mean::of_runs(&results[index].runs)[6].mean;
    assert!(p99(3) < p99(2) && p99(0) < p99(2));
    let csv = export::to_csv(&plan, &results);
    assert_eq!(csv.lines().count(), 9);
    assert!(csv.starts_with("load.utilisation,config.rule.web.strategy,strategy,seed,requests,"));
    let json: serde_json::Value = serde_json::from_str(&export::to_json(&plan, &results)).unwrap();
    assert_eq!(json["points"][3]["values"]["load.utilisation"], "0.6");
    assert!(
        json["points"][3]["figures"]["p99_ms"]["within"]
            .as_f64()
            .unwrap()
            > 0.0
    );
    let page = html::html_page(&plan, &results);
    assert!(page.contains("±") && !page.contains("<script") && !page.contains("http"));
    assert!(page.matches("<svg").count() >= 4 + 4 * 6);
}

#[test]
fn progress_goes_from_nothing_to_all() {
    let seen = Mutex::new(Vec::new());
    let plan = plan_with(CONFIG, "seeds = 2\n");
    run(&plan, &|done| seen.lock().unwrap().push(done));
    let mut seen = seen.into_inner().unwrap();
    seen.sort_by(f64::total_cmp);
    assert!(
        seen.len() > 4 && seen[0] < 0.3 && seen.last() == Some(&1.0),
        "{seen:?}"
    );
}

#[test]
fn the_central_queue_is_the_last_row_of_each_world() {
    let plan = plan_with(
        CONFIG,
        "duration = \"20s\"\n[load]\nrequests = 3\n\
         [[sweep]]\nkey = \"config.rule.web.strategy\"\nvalues = [\"adaptive\", \"random\"]\n\
         [[sweep]]\nkey = \"members.count\"\nvalues = [3, 6]\n",
    );
    let plan = plan.with_ideal().unwrap();
    let values: Vec<_> = plan.points.iter().map(|point| &point.values).collect();
    assert_eq!(values.len(), 6);
    assert_eq!(*values[4], [plan::IDEAL, "3"]);
    assert_eq!(*values[5], [plan::IDEAL, "6"]);
    let results = run(&plan, &|_| ());
    let of = |index: usize, name: &str| {
        let at = FIGURES.iter().position(|figure| figure.name == name);
        results[index].runs[0].figures[at.unwrap()]
    };
    // As many members, and the same requests.
    assert_eq!(of(1, "p99_to_ideal"), of(1, "p99_ms") / of(5, "p99_ms"));
    assert_eq!(of(4, "p99_to_ideal"), 1.0);
    assert!(of(2, "p99_to_ideal") > of(0, "p99_to_ideal"));
    assert!(of(0, "p99_to_ideal") > 0.95);
    let text = text::format_tables(&plan, &results);
    assert!(text.contains("p99/ideal"), "{text}");
    assert!(html::html_page(&plan, &results).contains(plan::IDEAL));
}

#[test]
fn the_central_queue_does_without_members_that_get_nothing_or_are_dead() {
    let dead = "[[event]]\nat = \"1s\"\ndead = true\nmembers = [\"10.0.0.1:80\"]\n";
    let config = "[rule.web]\nlisten = \"127.0.0.1:8080\"\nmembers = [\"10.0.0.1:80\", \
                  \"10.0.0.2:80\", { address = \"10.0.0.3:80\", weight = 0 }]\n";
    let plan = plan_with(
        config,
        &format!("duration = \"20s\"\n[load]\nutilisation = 0.3\n{dead}"),
    );
    let results = run(&plan.with_ideal().unwrap(), &|_| ());
    let shares = &results[1].first.shares;
    assert!(shares[0] < 0.2, "{shares:?}");
    assert_eq!(shares[2], 0.0);
}

#[test]
fn where_there_is_no_central_queue_it_is_said() {
    for (scenario, expected) in [
        (
            "[load]\nclients = 5\nrequests = 9\nlevel = \"connection\"\n",
            "connections stay",
        ),
        (
            "[load]\n[keys]\ncount = 50\ncache = 5\n",
            "knows nothing of caches",
        ),
        ("[load]\n[members]\ncount = 2000\n", "2000 workers"),
    ] {
        let error = plan_with(CONFIG, scenario).with_ideal().unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains(expected) && error.contains(":2:1"),
            "{error}"
        );
    }
}

#[test]
fn runs_that_would_fill_the_memory_are_refused() {
    let error = errors("duration = \"1d\"\n[load]\nrate = 100000\n");
    assert!(error.contains("8640 million requests"), "{error}");
    assert!(error.contains("scenario.toml:3:1"), "{error}");
    // Clients wait for answers: at most 300 per second of three members.
    plan_with(CONFIG, "duration = \"1d\"\n[load]\nclients = 100000\n");
}

//! The live view without a terminal: keys and answers in, screens out.

use evenkeel_manager::status::{
    CandidateStatus, EngineStatus, Explained, GroupStatus, LocationStatus, MemberStatus, Recent,
    RuleStatus, Status,
};
use evenkeel_manager::{AdminState, AlertSetting};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::{Color, Modifier};
use serde_json::json;

use super::app::KEYS;
use super::*;
use crate::ErrorBody;
use crate::client::DEFAULT_ADDRESS;
use crate::command::Member;
use crate::view::GroupView;
use crate::wire::{Done, Explain};

const SIZES: [(u16, u16); 3] = [(80, 24), (120, 40), (160, 50)];

fn member(name: &str, rate: u64, state: &str) -> MemberStatus {
    let reasons = match state {
        "up" => Vec::new(),
        reason => vec![reason.to_owned()],
    };
    serde_json::from_value(json!({
        "name": name, "address": "10.0.0.1:80", "joined": false, "location": format!("rack-{name}"),
        "state": state, "reasons": reasons, "admin": "ready", "weight": 1.0,
        "effective_weight": if state == "up" { 1.0 } else { 0.0 }, "max_connections": 100,
        "in_flight": 3, "latency_ms": 1.5,
        "recent": {"seconds": 10.0, "picks": rate * 10, "failures": 0, "p50_ms": 1.0, "p99_ms": 9.0},
        "share": 0.25,
        "totals": {"requests": 12_345, "failures": 0, "overloads": 0, "cancelled": 0},
        "check": {"age_seconds": 1.0, "error": null}, "opinions": [], "load": null, "alert": false
    }))
    .unwrap()
}

fn group(name: &str, members: Vec<MemberStatus>) -> GroupStatus {
    GroupStatus {
        name: name.into(),
        owner: None,
        strategy: "random".into(),
        params: Vec::new(),
        granularity: "per_request".into(),
        load: "cpu".into(),
        adaptive: true,
        panic: false,
        maintenance: false,
        alerts: 0,
        alerts_raised: 0,
        recent: Recent {
            seconds: 10.0,
            picks: members.iter().map(|member| member.recent.picks).sum(),
            failures: 0,
            p50_ms: Some(1.0),
            p99_ms: Some(9.0),
            first_byte_ms: None,
            stream_bytes_per_second: None,
        },
        engines: None,
        zones: Vec::new(),
        refused: Vec::new(),
        lists: Vec::new(),
        chooser: None,
        members,
    }
}

/// Returns three groups, in this order; the members of `web` are not in the order of their rates.
fn status() -> Status {
    let mut web = vec![
        member("a:80", 20, "up"),
        member("b:80", 5, "down"),
        member("c:80", 70, "up"),
    ];
    web[1].check.as_mut().unwrap().error =
        Some("connection refused by the peer, three times in a row, since it was started".into());
    web[2].alert = true;
    let groups = vec![
        group("web", web),
        group("api", vec![member("d:80", 400, "up")]),
        group("db", Vec::new()),
    ];
    let rules = groups.iter().map(|group| RuleStatus {
        name: group.name.clone(),
        enabled: group.name != "db",
        maintenance: false,
        protocol: "http".into(),
        listen: vec!["127.0.0.1:8080".into()],
        group: group.name.clone(),
        sni: Default::default(),
        limits: Vec::new(),
        routed: Default::default(),
        mirrors: Default::default(),
        asks: Default::default(),
        forward: None,
    });
    let locations = groups.iter().flat_map(|group| &group.members);
    let locations = locations.map(|member| LocationStatus {
        name: member.location.clone(),
        alert: member.alert,
        alert_setting: AlertSetting::Auto,
        alerts: Vec::new(),
        loads: Vec::new(),
    });
    Status {
        generation: 7,
        rules: rules.collect(),
        locations: locations.collect(),
        groups,
        ..Status::default()
    }
}

fn seen(status: Status) -> ApiUpdate {
    let explained = None;
    ApiUpdate::Look(Ok(Box::new(ApiSnapshot { status, explained })))
}

/// Returns a view that has had its first answer.
fn app() -> App {
    let mut app = App::new(DEFAULT_ADDRESS, SECOND);
    app.take_update(seen(status()), Instant::now());
    app
}

/// Presses keys: a character each, and those without one by name.
fn press(app: &mut App, keys: &str) -> Option<Command> {
    let mut command = None;
    for key in keys.split(' ') {
        let codes = match key {
            "Enter" => vec![KeyCode::Enter],
            "Esc" => vec![KeyCode::Esc],
            "Backspace" => vec![KeyCode::Backspace],
            "Up" => vec![KeyCode::Up],
            "Down" => vec![KeyCode::Down],
            "Left" => vec![KeyCode::Left],
            "Right" => vec![KeyCode::Right],
            "PageDown" => vec![KeyCode::PageDown],
            "End" => vec![KeyCode::End],
            "F1" => vec![KeyCode::F(1)],
            text => text.chars().map(KeyCode::Char).collect(),
        };
        for code in codes {
            command = app.handle_key(KeyEvent::from(code));
        }
    }
    command
}

fn terminal(app: &mut App, (width, height): (u16, u16), now: Instant) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| app.draw_screen(frame, now)).unwrap();
    terminal
}

fn lines(app: &mut App, size: (u16, u16)) -> Vec<String> {
    let terminal = terminal(app, size, Instant::now());
    let buffer = terminal.backend().buffer();
    let line = |y| {
        (0..size.0)
            .map(|x| buffer[(x, y)].symbol())
            .collect::<String>()
    };
    (0..size.1).map(|y| line(y).trim_end().to_owned()).collect()
}

fn screen(app: &mut App) -> String {
    lines(app, SIZES[0]).join("\n")
}

#[track_caller]
fn assert_shows(app: &mut App, wanted: &[&str]) {
    let screen = screen(app);
    for wanted in wanted {
        assert!(screen.contains(wanted), "no {wanted:?} in\n{screen}");
    }
}

/// Returns the first words of the rows of the table.
fn rows(app: &mut App) -> Vec<String> {
    let lines = lines(app, SIZES[0]).into_iter().skip(3);
    let rows = lines.take_while(|line| !line.is_empty());
    let first = |line: String| {
        line.split_whitespace()
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    rows.map(first).collect()
}

#[test]
fn all_groups_come_first_in_every_size() {
    let narrow = "GROUP   UP  REQ/S  P50  P99  FAILED  ALERTS  IN FLIGHT  STRATEGY";
    let web = "web    2/3     95  1ms  9ms      0%       1          9  random";
    let heads = format!("{narrow}  LISTEN                          BOUND        LOAD");
    let wide = format!("{web}    http 127.0.0.1:8080             per_request  cpu");
    let wanted = [(narrow, web), (&*heads, &*wide), (&*heads, &*wide)];
    for (size, (heads, web)) in SIZES.into_iter().zip(wanted) {
        let lines = lines(&mut app(), size);
        assert_eq!(
            lines[0],
            "evenkeel at 127.0.0.1:9900  configuration 7, every 1s"
        );
        assert_eq!(
            lines[1],
            "3 groups  495 req/s  3 of 4 members up  1 under alert"
        );
        assert_eq!((&*lines[2], &*lines[3]), (heads, web));
        assert!(lines[size.1 as usize - 1].starts_with("? help  Enter open"));
    }
}

#[test]
fn groups_with_engines_have_columns_about_tokens_and_others_have_not() {
    let engine = EngineStatus {
        prompt_tokens_per_second: 1234.0,
        output_tokens_per_second: 56.0,
        cache_hit_rate: Some(0.75),
        first_token_p50_ms: Some(120.0),
        first_token_p90_ms: Some(870.0),
        between_tokens_p50_ms: Some(21.0),
        between_tokens_p90_ms: Some(33.0),
        queued_tokens: 4567.4,
        queued_tokens_elsewhere: 890.0,
        ..EngineStatus::default()
    };
    let mut status = status();
    status.groups[0].engines = Some(engine);
    status.groups[0].members[0].engine = Some(engine);
    status.groups[0].members[1].engine = Some(EngineStatus::default());
    let mut app = App::new(DEFAULT_ADDRESS, SECOND);
    app.take_update(seen(status), Instant::now());
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let heads = "PROMPT TOK/S OUTPUT TOK/S CACHE HITS 1ST TOKEN P50 1ST TOKEN P90 TOKEN GAP P50 TOKEN GAP P90 QUEUED TOK QUEUED ELSEWHERE";
    let figures = [
        "1234", "56", "75%", "120ms", "870ms", "21ms", "33ms", "4567", "890",
    ];
    let wide = (280, 30);
    // Of all groups, and of the members of one.
    for keys in ["", "Enter"] {
        press(&mut app, keys);
        let lines = lines(&mut app, wide);
        assert!(words(&lines[2]).join(" ").contains(heads), "{}", lines[2]);
        let row = words(&lines[3]).join(" ");
        assert!(row.contains(&figures.join(" ")), "{row}");
    }
    // Without answers nothing is known of their times.
    let lines = lines(&mut app, wide);
    assert!(
        words(&lines[4]).join(" ").contains("0 0 - - - - - 0"),
        "{}",
        lines[4]
    );
    press(&mut app, "Right");
    assert!(!self::lines(&mut app, wide)[2].contains("TOK/S"));
}

#[test]
fn rules_whose_connections_the_kernel_forwards_say_so() {
    let mut status = status();
    status.rules[0].forward = Some("kernel".into());
    status.rules[1].forward = Some("proxy (no right to load BPF programs)".into());
    let mut app = App::new(DEFAULT_ADDRESS, SECOND);
    app.take_update(seen(status), Instant::now());
    let shown = ["http, kernel 127.0.0.1:8080", "http, proxy 127.0.0.1:8080"];
    let lines = lines(&mut app, SIZES[1]).join("\n");
    for text in shown {
        assert!(lines.contains(text), "{lines}");
    }
}

#[test]
fn a_group_uses_the_width_that_there_is_and_marks_what_is_cut() {
    let mut app = app();
    press(&mut app, "Enter");
    let wanted = [
        (
            "MEMBER STATE WEIGHT SHARE REQ/S P50 P99 FAILED ALERT     CHECK",
            "b:80   down       1   25%     5 1ms 9ms     0%           connection refused by …",
        ),
        (
            "MEMBER STATE WEIGHT SHARE            REQ/S IN FLIGHT P50 P99 FAILED ALERT     CHECK",
            "b:80   down       1 ██▌·······   25%     5         3 1ms 9ms     0%           \
             connection refused by the peer, three tim…",
        ),
        (
            "MEMBER  STATE  WEIGHT  SHARE             REQ/S  IN FLIGHT  P50  P99  FAILED  \
             ALERT      CHECK                                             LOCATION   ADDRESS",
            "b:80    down        1  ██▌·······   25%      5          3  1ms  9ms      0%  \
             \u{20}          connection refused by the peer, three times in …  rack-b:80  10.0.0.1:80",
        ),
    ];
    for (size, (heads, row)) in SIZES.into_iter().zip(wanted) {
        let lines = lines(&mut app, size);
        assert_eq!(lines[1], "web  random  95 req/s");
        assert_eq!((&*lines[2], &*lines[4]), (heads, row));
    }
    let terminal = terminal(&mut app, SIZES[0], Instant::now());
    let buffer = terminal.backend().buffer();
    assert!(buffer[(0, 3)].modifier.contains(Modifier::REVERSED));
    assert_eq!(buffer[(0, 4)].fg, Color::Red);
    // A long line of keys is cut, too, with a mark.
    assert!(screen(&mut app).ends_with('…'), "{}", screen(&mut app));
}

#[test]
fn groups_are_opened_left_and_walked_through() {
    let mut app = app();
    press(&mut app, "Down Enter");
    assert_shows(&mut app, &["api  random  400 req/s", "d:80"]);
    press(&mut app, "Right");
    assert_shows(&mut app, &["db  random", "there is nothing here"]);
    press(&mut app, "Right");
    assert_shows(&mut app, &["web  random"]);
    press(&mut app, "Left Left");
    assert_shows(&mut app, &["api  random"]);
    press(&mut app, "Backspace Up Enter");
    assert_shows(&mut app, &["web  random"]);
    press(&mut app, "Esc");
    assert_eq!(rows(&mut app), ["web", "api", "db"]);
    // Esc alone does not end it.
    press(&mut app, "Esc");
    assert!(!app.done);
    // A group that is gone is left.
    press(&mut app, "Enter");
    let mut less = status();
    less.groups.remove(0);
    app.take_update(seen(less), Instant::now());
    assert_shows(&mut app, &["there is no group web any more", "2 groups"]);
}

#[test]
fn rows_are_sorted_and_keep_their_cursor() {
    let mut app = app();
    press(&mut app, "Enter Down");
    assert_eq!(rows(&mut app), ["a:80", "b:80", "c:80"]);
    // MEMBER, STATE, WEIGHT, SHARE, REQ/S.
    press(&mut app, ">>>>>");
    assert_shows(&mut app, &["REQ/S▼"]);
    assert_eq!(rows(&mut app), ["c:80", "a:80", "b:80"]);
    press(&mut app, "I");
    assert_shows(&mut app, &["REQ/S▲"]);
    assert_eq!(rows(&mut app), ["b:80", "a:80", "c:80"]);
    assert_eq!(press(&mut app, "d y"), Some(drain("b:80")));
    press(&mut app, "Right Left");
    assert_shows(&mut app, &["REQ/S▲"]);
    press(&mut app, "<<<<<");
    assert_eq!(rows(&mut app), ["a:80", "b:80", "c:80"]);
    // Without an order, the other way round is by name.
    press(&mut app, "Esc r");
    assert_eq!(rows(&mut app), ["web", "db", "api"]);
}

#[test]
fn a_filter_is_typed_kept_and_ended() {
    let mut app = app();
    press(&mut app, "Enter /RACK-b");
    assert_shows(&mut app, &["filter (Enter, Esc): RACK-b█"]);
    assert_eq!(rows(&mut app), ["b:80"]);
    press(&mut app, "Backspace c Enter");
    assert_shows(&mut app, &[" /RACK-c   web"]);
    assert_eq!(rows(&mut app), ["c:80"]);
    press(&mut app, "/ x Enter");
    assert_shows(&mut app, &["nothing matches the filter"]);
    // Nobody is drained whom nobody sees.
    press(&mut app, "d");
    assert_eq!(app.prompt, None);
    press(&mut app, "Esc");
    assert_eq!(rows(&mut app).len(), 3);
    press(&mut app, "Esc");
    assert_shows(&mut app, &["3 groups"]);
}

fn drain(member: &str) -> Command {
    state(member, AdminState::Drain)
}

fn state(member: &str, state: AdminState) -> Command {
    Command::State(Member::new("web", member), state)
}

#[test]
fn changes_are_confirmed_and_their_answer_is_shown() {
    let mut app = app();
    assert_eq!(press(&mut app, "d"), None);
    assert_shows(
        &mut app,
        &["open a group (Enter) and choose a member first"],
    );
    press(&mut app, "Enter d");
    assert_shows(&mut app, &["Drain a:80 in web?", "(y/n)"]);
    // Other keys neither answer nor do what they usually do.
    assert_eq!(press(&mut app, "Down Enter j"), None);
    assert_eq!(press(&mut app, "n"), None);
    assert_shows(&mut app, &["nothing was changed"]);
    assert_eq!(press(&mut app, "d Esc"), None);
    assert_eq!(press(&mut app, "d y"), Some(drain("a:80")));
    assert_shows(&mut app, &["waiting for the answer"]);
    app.take_update(
        ApiUpdate::Changed(drain("a:80"), Ok(Done { ok: true })),
        Instant::now(),
    );
    assert_shows(&mut app, &["a:80 in web drains"]);
    let other = state("b:80", AdminState::Maintenance);
    assert_eq!(press(&mut app, "Down m Y"), Some(other));
    let other = state("b:80", AdminState::Ready);
    assert_eq!(press(&mut app, "u y"), Some(other));
    let other = Command::EndEjection(Member::new("web", "b:80"));
    assert_eq!(press(&mut app, "x y"), Some(other));
    // With another key at the same time it is another key.
    for modifiers in [KeyModifiers::CONTROL, KeyModifiers::ALT] {
        app.handle_key(KeyEvent::new(KeyCode::Char('d'), modifiers));
        assert_eq!(app.prompt, None);
    }
}

#[test]
fn an_ejection_has_its_end_and_its_cause() {
    let ejected = |left: f64, by: Option<&str>, why: &str| {
        let mut member = member("a:80", 0, "ejected");
        let ejection = json!({
            "seconds_left": left, "by": by, "why": why, "requests": 9, "failures": 9
        });
        member.ejection = serde_json::from_value(ejection).unwrap();
        GroupView::of_group(&group("web", vec![member]), &[]).plain_text()
    };
    for (text, shown) in [
        (
            ejected(9.2, None, "5 failures in a row"),
            ["ejected", "10s left: 5 failures in a row"],
        ),
        (
            ejected(0.1, Some("lb-2"), "balancer lb-2 has ejected the member"),
            [
                "ejected by lb-2",
                "1s left: balancer lb-2 has ejected the member",
            ],
        ),
        (ejected(300.0, None, ""), ["ejected", "5min left"]),
    ] {
        assert!(text.contains("EJECTION"), "{text}");
        assert!(shown.iter().all(|part| text.contains(part)), "{text}");
    }
    let up = group("web", vec![member("a:80", 1, "up")]);
    assert!(
        !GroupView::of_group(&up, &[])
            .plain_text()
            .contains("EJECTION")
    );
}

#[test]
fn weights_and_alerts_are_typed() {
    let mut app = app();
    press(&mut app, "Enter w x Backspace 2.5");
    assert_shows(
        &mut app,
        &["weight of a:80 in web, 0 to 1000 (Enter, Esc): 2.5█"],
    );
    press(&mut app, "Enter");
    assert_shows(&mut app, &["Set the weight of a:80 in web to 2.5? (y/n)"]);
    let weight = Command::Weight(Member::new("web", "a:80"), 2.5);
    assert_eq!(press(&mut app, "y"), Some(weight));
    for wrong in ["", "two", "NaN", "inf"] {
        press(&mut app, "w");
        press(&mut app, wrong);
        press(&mut app, "Enter");
        assert_shows(&mut app, &[&format!("{wrong:?} is no weight")]);
    }
    for (word, alert) in [
        ("on", AlertSetting::On),
        ("off", AlertSetting::Off),
        ("auto", AlertSetting::Auto),
    ] {
        let location = "rack-a:80".to_owned();
        press(&mut app, &format!("a {word} Enter"));
        assert_eq!(press(&mut app, "y"), Some(Command::Alert(location, alert)));
    }
    press(&mut app, "a yes Enter");
    assert_shows(&mut app, &["\"yes\" is none of on, off and auto"]);
    // What is typed has an end.
    press(&mut app, "w");
    press(&mut app, &"1".repeat(1000));
    assert!(matches!(&app.prompt, Some(app::Prompt::Weight(_, text)) if text.len() == 100));
    press(&mut app, "Esc");
    assert_eq!(app.prompt, None);
}

#[test]
fn refusals_are_told_in_plain_words() {
    let mut app = app();
    press(&mut app, "Enter");
    let refused = |status, detail: &str| ClientError::Refused {
        status,
        body: ErrorBody {
            error: "refused".into(),
            detail: detail.into(),
            allowed: Vec::new(),
            more: Default::default(),
        },
    };
    let error = refused(403, "the token may read only");
    app.take_update(
        ApiUpdate::Changed(drain("a:80"), Err(error)),
        Instant::now(),
    );
    assert_shows(
        &mut app,
        &["nothing was changed: you may look, but not change anything: the token may"],
    );
    let error = refused(404, "there is no member x");
    app.take_update(ApiUpdate::Changed(drain("x"), Err(error)), Instant::now());
    assert_shows(&mut app, &["nothing was changed: there is no member x"]);
    // A long one is cut to three lines, with a mark.
    app.take_update(
        ApiUpdate::Look(Err(refused(500, &"long ".repeat(100)))),
        Instant::now(),
    );
    press(&mut app, "j");
    let lines = lines(&mut app, SIZES[0]);
    assert!(lines[21].ends_with('…'), "{lines:#?}");
}

#[test]
fn a_lost_connection_leaves_the_last_picture() {
    let start = Instant::now();
    let mut app = App::new(DEFAULT_ADDRESS, SECOND);
    assert_shows(&mut app, &["asking 127.0.0.1:9900 …"]);
    app.take_update(
        ApiUpdate::Look(Err(ClientError::Address("nowhere".into()))),
        start,
    );
    assert_shows(&mut app, &["asking 127.0.0.1:9900 …", "nowhere"]);
    app.take_update(seen(status()), start);
    app.take_update(
        ApiUpdate::Look(Err(ClientError::Address("nowhere".into()))),
        start,
    );
    let terminal = terminal(&mut app, SIZES[0], start + 12 * SECOND);
    let buffer = terminal.backend().buffer();
    let line = |y| (0..80).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    assert!(
        line(0).contains(" OLD: 12s ago; asking again "),
        "{}",
        line(0)
    );
    assert!(line(4).starts_with("api"), "{}", line(4));
    assert!(buffer[(0, 4)].modifier.contains(Modifier::DIM));
    let complaint = [line(21), line(22)].concat();
    assert!(complaint.contains("nowhere"), "{complaint}");
    app.take_update(seen(status()), start);
    assert!(!screen(&mut app).contains("OLD"));
}

#[test]
fn looks_are_paused_and_made_more_or_less_often() {
    let mut app = app();
    press(&mut app, "+");
    assert_eq!(app.next_wish().interval, Some(2 * SECOND));
    assert_shows(&mut app, &["every 2s"]);
    press(&mut app, &"+".repeat(20));
    assert_eq!(app.next_wish().interval, Some(60 * SECOND));
    press(&mut app, &"-".repeat(20));
    assert_eq!(app.next_wish().interval, Some(FRAME));
    press(&mut app, "p");
    assert_eq!(app.next_wish().interval, None);
    assert_shows(&mut app, &[" PAUSED "]);
    press(&mut app, "p");
    assert_eq!(app.next_wish().interval, Some(FRAME));
}

fn explanation(verdict: &str) -> Explain {
    let candidate = |number: usize| CandidateStatus {
        member: format!("{number}:80"),
        score: Some(0.125),
        verdict: verdict.into(),
    };
    let decision = Explained {
        in_kernel: false,
        group: "web".into(),
        strategy: "random".into(),
        age_seconds: 0.0,
        chosen: Some("1:80".into()),
        error: None,
        notes: vec!["panic: that is ignored".into()],
        candidates: (0..3).map(candidate).collect(),
    };
    Explain {
        last: None,
        next: decision,
    }
}

#[test]
fn explanations_are_asked_for_and_shown_whole() {
    let mut app = app();
    assert_eq!(app.next_wish().explained, None);
    screen(&mut app);
    press(&mut app, "e");
    assert_eq!(app.next_wish().explained.as_deref(), Some("web"));
    assert_shows(&mut app, &["asking …"]);
    let explained = |group: &str, verdict: &str| {
        ApiUpdate::Look(Ok(Box::new(ApiSnapshot {
            status: status(),
            explained: Some((group.into(), Ok(explanation(verdict)))),
        })))
    };
    app.take_update(explained("api", "drawn"), Instant::now());
    assert_shows(&mut app, &["asking …"]);
    app.take_update(explained("web", "drawn"), Instant::now());
    assert_shows(
        &mut app,
        &[
            "The next request would go to 1:80",
            "> 1:80    0.125  drawn",
            "panic: that",
        ],
    );
    // A long verdict goes on in the next line, and a long explanation is scrolled.
    let verdict = "a verdict that is much longer than eighty columns, as those of adaptive are, \
                   with its reasons, each of which somebody wants to read to the end";
    app.take_update(explained("web", &[verdict; 3].join("; ")), Instant::now());
    assert_shows(
        &mut app,
        &[
            "\n                 adaptive are,",
            "lines 1 to ",
            "PgUp PgDn",
        ],
    );
    let top = screen(&mut app);
    press(&mut app, "PageDown PageDown PageDown");
    let end = screen(&mut app);
    assert_ne!(top, end);
    assert!(end.contains("The group has had no request yet."), "{end}");
    press(&mut app, "Esc");
    assert_eq!(app.next_wish().explained, None);
}

#[test]
fn the_help_has_all_keys_and_the_manual_has_them_too() {
    let manual = include_str!("../../../../docs/cli.md");
    for size in [(80, 24), (120, 40), (160, 50)] {
        let mut app = app();
        press(&mut app, "F1");
        let screen = lines(&mut app, size).join("\n");
        for (keys, what) in KEYS {
            assert!(
                screen.contains(keys) && screen.contains(what),
                "{what}:\n{screen}"
            );
            let keys: Vec<_> = keys.split(' ').map(|key| format!("`{key}`")).collect();
            let row = format!("| {} | {what} |", keys.join(" "));
            assert!(manual.contains(&row), "docs/cli.md lacks {row}");
        }
        // Any key ends it, and does nothing else.
        press(&mut app, "q");
        assert!(!app.help && !app.done);
    }
}

#[test]
fn three_keys_end_it() {
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    for key in [KeyCode::Char('q').into(), KeyCode::F(10).into(), control_c] {
        let mut app = app();
        app.handle_key(KeyCode::Char('c').into());
        assert!(!app.done);
        app.handle_key(key);
        assert!(app.done, "{key:?}");
    }
}

#[test]
fn no_size_of_the_terminal_is_too_small() {
    for keys in ["F1", "Enter e", "Enter d", "/ x"] {
        let mut app = app();
        press(&mut app, keys);
        for (width, height) in [(1, 1), (3, 2), (7, 30), (200, 3), (20, 6)] {
            lines(&mut app, (width, height));
        }
    }
}

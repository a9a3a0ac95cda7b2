//! Preview of an agent's reports, for people who set one up.

use std::fmt::Write as _;
use std::path::Path;

use evenkeel_config::agent as config;
use evenkeel_core::load::LoadId;

use crate::agent::{Agent, Error};
use crate::figures::Figures;
use crate::server::{Server, advise_missing_page};

/// Measures one interval with the configuration in `file`, and says what would be
/// reported to whom. Nothing is sent, and nobody is listened to.
///
/// # Errors
///
/// Why the agent could not start.
///
/// # Panics
///
/// Outside a tokio runtime with I/O and time enabled.
pub async fn measure_once(file: &Path) -> Result<String, Error> {
    let mut config = config::load_agent_config(file)?;
    let listens = std::mem::take(&mut config.agent_check.listen);
    let mut own = Vec::new();
    for server in &mut config.servers {
        own.push(std::mem::take(&mut server.agent_check));
    }
    let has_agent_check = !listens.is_empty() || own.iter().any(|own| !own.is_empty());
    let interval = config.interval;
    let (mut agent, _) = Agent::start(config).await?;
    for server in agent.servers() {
        server.check_port_now().await;
    }
    // A short one first: it takes two in a row that find no process of a server to say that
    // it is gone.
    for length in [interval / 10, interval] {
        tokio::time::sleep(length).await;
        agent.end_interval();
    }
    Ok(describe(&agent, has_agent_check))
}

fn describe(agent: &Agent, has_agent_check: bool) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut text, agent, has_agent_check);
    text
}

fn write(text: &mut String, agent: &Agent, has_agent_check: bool) -> std::fmt::Result {
    for warning in &agent.config().warnings {
        writeln!(text, "warning: {warning}")?;
    }
    for place in agent.watched_locations() {
        writeln!(text, "location {}", place.name)?;
        for (id, value) in agent.loads_at(place) {
            writeln!(
                text,
                "  {:<20} {}",
                id.to_string(),
                number(id, f64::from(value.get()))
            )?;
        }
        for (id, reason) in &place.load.missing {
            writeln!(text, "  {:<20} not available: {reason}", id.to_string())?;
        }
        for server in agent.servers() {
            if agent.location_of(server) == place.name {
                describe_server(text, agent, server, has_agent_check)?;
            }
        }
    }
    for broker in &agent.config().brokers {
        writeln!(
            text,
            "would report to broker {} at {}",
            broker.name, broker.address
        )?;
    }
    if agent.config().brokers.is_empty() {
        writeln!(text, "would report to no broker: there is no [broker.NAME]")?;
    }
    Ok(())
}

fn describe_server(
    text: &mut String,
    agent: &Agent,
    server: &Server,
    has_agent_check: bool,
) -> std::fmt::Result {
    let config = &server.config;
    let groups = config.groups.join(", ");
    writeln!(
        text,
        "  server {} ({} in group {groups}): {}",
        config.name, config.address, server.condition
    )?;
    match &server.figures {
        Some(figures) => describe_figures(text, figures)?,
        None if config.applications.is_empty() => {
            writeln!(text, "    not instrumented: no request figures")?;
        }
        None => writeln!(
            text,
            "    {}",
            advise_missing_page(&config.applications, agent.pages())
        )?,
    }
    match agent.line_of(&config.name) {
        Some(line) if has_agent_check => writeln!(text, "    agent-check: {line}"),
        _ => Ok(()),
    }
}

fn describe_figures(text: &mut String, figures: &Figures) -> std::fmt::Result {
    let seconds = |time: Option<f64>| time.map_or("unknown".into(), |time| format!("{time:.6} s"));
    let service = match figures.service_time {
        Some((time, source)) => format!("{time:.6} s ({source})"),
        None => "unknown: no request was served alone yet, and no queueing time is reported".into(),
    };
    let share = figures.utilization;
    let share = share.map_or("unknown".into(), |share| format!("{:.1} %", share * 100.0));
    let cut = if figures.clamped {
        " (limited; see `capacity`)"
    } else {
        ""
    };
    writeln!(
        text,
        "    arrival rate         {:.2} per second",
        figures.arrival_rate
    )?;
    writeln!(text, "    in flight            {}", figures.in_flight)?;
    writeln!(
        text,
        "    response time        {}",
        seconds(figures.response_time)
    )?;
    writeln!(text, "    service time         {service}")?;
    writeln!(text, "    utilisation          {share}{cut}")?;
    writeln!(
        text,
        "    think time           {}",
        seconds(figures.think_time)
    )
}

fn number(id: LoadId, value: f64) -> String {
    match id {
        _ if id.is_utilization() => format!("{:.1} %", value * 100.0),
        LoadId::RESPONSE_TIME | LoadId::SERVICE_TIME | LoadId::THINK_TIME => {
            format!("{value:.6} s")
        }
        LoadId::REQUESTS_PER_SECOND => format!("{value:.2} per second"),
        LoadId::RUN_QUEUE => format!("{value:.2} tasks per CPU"),
        _ => value.to_string(),
    }
}

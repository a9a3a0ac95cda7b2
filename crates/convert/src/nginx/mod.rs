//! nginx's configuration: blocks, directives and what they mean.

mod groups;
mod locations;
mod scope;
mod servers;
mod values;
mod words;
mod world;

use groups::upstream;
use words::{Directive, directives};
use world::World;

use crate::error::ConvertError;
use crate::model::Model;
use crate::units::{DAY, parse_millis, time};

/// Reads a configuration.
pub(crate) fn read(text: &str) -> Result<Model, ConvertError> {
    let all = directives(text)?;
    let mut model = Model::default();
    let (mut http, mut stream): (Vec<&Directive>, Vec<&Directive>) = (Vec::new(), Vec::new());
    for directive in &all {
        match directive.name.as_str() {
            "http" => http.extend(directive.inner_directives()),
            "stream" => stream.extend(directive.inner_directives()),
            "worker_processes" => {
                if let Ok(count @ 1..=1024) = directive.word_at(0).parse::<u64>() {
                    model.top.set("workers", count);
                }
            }
            "worker_shutdown_timeout" => match parse_millis(directive.word_at(0), 1000) {
                Some(millis) => model.top.set("shutdown_grace", time(millis, DAY)),
                None => model.notes.add_note(directive.line, "not a time"),
            },
            "events"
            | "pid"
            | "worker_rlimit_nofile"
            | "daemon"
            | "master_process"
            | "worker_priority"
            | "worker_cpu_affinity"
            | "pcre_jit"
            | "timer_resolution" => {
                model.notes.add_note(
                    directive.line,
                    "Evenkeel has no counterpart, and mostly needs none",
                );
            }
            "user" => model.notes.add_note(
                directive.line,
                "set the user with `user` of [process], or in the unit of systemd: docs/service.md",
            ),
            "error_log" => model
                .notes
                .add_note(directive.line, "the log goes to standard error"),
            "load_module" | "mail" => model
                .notes
                .add_note(directive.line, "Evenkeel has no counterpart"),
            // A part of a file, as it is included in `http`.
            _ => http.push(directive),
        }
    }
    let mut world = World::default();
    for directive in http.iter().chain(&stream) {
        world.take(directive, &mut model);
    }
    for directive in http
        .iter()
        .chain(&stream)
        .filter(|directive| directive.name == "upstream")
    {
        upstream(directive, &mut model);
    }
    servers::add_http(&http, &world, &mut model);
    servers::add_stream(&stream, &world, &mut model);
    Ok(model)
}

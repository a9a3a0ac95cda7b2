//! Requests of clients, read from the fields of a request for a site or from the query of a
//! program, and problems with them.

use std::time::Duration;

use evenkeel_net::http::{Head, Target};
use evenkeel_wire::negotiation::{
    self, CLASS, MEDIA_TYPE, MOST_MEMBERS, REBIND, RESPONSE_TIME, SESSION,
};
use hyper::header::ACCEPT;
use hyper::{Method, StatusCode};

use super::metrics::Unheard;

/// Parts of a request.
#[derive(Debug)]
pub(super) struct RequestParts {
    pub(super) form: Form,
    pub(super) class: Option<String>,
    pub(super) response_time: Option<Duration>,
    pub(super) session: Option<String>,
    pub(super) avoid: Vec<String>,
    pub(super) current: Option<String>,
    pub(super) alternatives: usize,
}

/// Form of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A redirect to a path of the site, that may be kept or not.
    Redirect { to: String, keep: bool },
    /// A binding in JSON.
    Binding,
}

/// A request that is no negotiation.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) why: Unheard,
    pub(super) status: StatusCode,
    pub(super) detail: String,
    pub(super) allowed: Vec<String>,
}

impl Problem {
    pub(super) fn new(why: Unheard, status: StatusCode, detail: impl Into<String>) -> Self {
        Problem {
            why,
            status,
            detail: detail.into(),
            allowed: Vec::new(),
        }
    }

    pub(super) fn bad_parameter(detail: impl Into<String>) -> Self {
        Problem::new(Unheard::BadParameter, StatusCode::BAD_REQUEST, detail)
    }
}

/// Checks that the method of a request is one of those `allowed`.
pub(super) fn check_method(head: &Head, allowed: &[Method]) -> Result<(), Problem> {
    if allowed.contains(&head.method) {
        return Ok(());
    }
    Err(Problem {
        allowed: allowed.iter().map(ToString::to_string).collect(),
        ..Problem::new(
            Unheard::Method,
            StatusCode::METHOD_NOT_ALLOWED,
            format!("{} is not supported here", head.method),
        )
    })
}

/// Reads the fields of a request for a site's own URL.
pub(super) fn asked_in_fields(head: &Head, target: Target) -> Result<RequestParts, Problem> {
    // They never reach a server.
    if matches!(head.method, Method::CONNECT | Method::TRACE) {
        check_method(head, &[Method::GET, Method::HEAD, Method::POST])?;
    }
    let (to, keep) = match target.path_and_query.strip_prefix(REBIND) {
        Some(rest) if rest.starts_with('/') => (rest.to_owned(), false),
        Some(rest) if rest.is_empty() || rest.starts_with('?') => (format!("/{rest}"), false),
        _ => (target.path_and_query, true),
    };
    let form = if wants_binding(head)? {
        Form::Binding
    } else {
        Form::Redirect { to, keep }
    };
    let mut asked = RequestParts::of(form);
    for (name, set) in SETTERS {
        let Setter::Field(field) = name else {
            continue;
        };
        if let Some(value) = single(head, field)? {
            set(&mut asked, value)?;
        }
    }
    Ok(asked)
}

/// True if `Accept` holds our own media type.
fn wants_binding(head: &Head) -> Result<bool, Problem> {
    for value in head.headers.get_all(ACCEPT) {
        let value = value
            .to_str()
            .map_err(|_| Problem::bad_parameter("the field Accept is not ASCII"))?;
        let mut ranges = value.split(',');
        let is_ours = |range: &str| {
            let name = range.split(';').next().unwrap_or_default();
            name.trim().eq_ignore_ascii_case(MEDIA_TYPE)
        };
        if ranges.any(is_ours) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn single<'a>(head: &'a Head, name: &str) -> Result<Option<&'a str>, Problem> {
    let mut values = head.headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => match value.to_str() {
            Ok(value) => Ok(Some(value.trim())),
            Err(_) => Err(Problem::bad_parameter(format!(
                "the field {name} is not ASCII"
            ))),
        },
        (Some(_), Some(_)) => Err(Problem::bad_parameter(format!(
            "the field {name} is given more than once"
        ))),
    }
}

/// Reads the query of a program: the name of the cluster, and the rest.
pub(super) fn asked_in_query(query: &str) -> Result<(Option<String>, RequestParts), Problem> {
    let mut asked = RequestParts::of(Form::Binding);
    let mut cluster = None;
    let mut seen: Vec<String> = Vec::new();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        if seen.iter().any(|known| *known == name) {
            return Err(Problem::bad_parameter(format!(
                "the parameter {name:?} is given more than once"
            )));
        }
        let setter = SETTERS.iter().find_map(|(setter, set)| match setter {
            Setter::Parameter(known) if *known == name => Some(set),
            _ => None,
        });
        match setter {
            Some(set) => set(&mut asked, &value)?,
            None if name == "cluster" => cluster = Some(value.into_owned()),
            None => {
                let known = SETTERS.iter().filter_map(|(setter, _)| match setter {
                    Setter::Parameter(name) => Some((*name).to_owned()),
                    Setter::Field(_) => None,
                });
                return Err(Problem {
                    allowed: std::iter::once("cluster".to_owned()).chain(known).collect(),
                    ..Problem::bad_parameter(format!("there is no parameter {name:?}"))
                });
            }
        }
        seen.push(name.into_owned());
    }
    Ok((cluster, asked))
}

impl RequestParts {
    fn of(form: Form) -> Self {
        RequestParts {
            form,
            class: None,
            response_time: None,
            session: None,
            avoid: Vec::new(),
            current: None,
            alternatives: 0,
        }
    }

    fn set_class(&mut self, value: &str) -> Result<(), Problem> {
        self.class = Some(value.to_owned());
        Ok(())
    }

    fn set_response_time(&mut self, value: &str) -> Result<(), Problem> {
        let time = negotiation::parse_time(value);
        self.response_time = Some(time.ok_or_else(|| {
            Problem::bad_parameter(format!(
                "{value:?} is not a response time; expected a number with a unit, as in 200ms or 1.5s, of at most 3600s"
            ))
        })?);
        Ok(())
    }

    fn set_session(&mut self, value: &str) -> Result<(), Problem> {
        if !negotiation::is_session(value) {
            return Err(Problem::bad_parameter(
                "a session id has 1 to 64 letters, digits, \"-\" and \"_\"",
            ));
        }
        self.session = Some(value.to_owned());
        Ok(())
    }

    fn set_avoid(&mut self, value: &str) -> Result<(), Problem> {
        let names: Vec<String> = value.split(',').map(str::to_owned).collect();
        if names.len() > MOST_MEMBERS {
            return Err(Problem::bad_parameter(format!(
                "the parameter `avoid` takes at most {MOST_MEMBERS} servers"
            )));
        }
        self.avoid = names;
        Ok(())
    }

    fn set_current(&mut self, value: &str) -> Result<(), Problem> {
        self.current = Some(value.to_owned());
        Ok(())
    }

    fn set_alternatives(&mut self, value: &str) -> Result<(), Problem> {
        let number = value.parse().ok().filter(|&number| number <= MOST_MEMBERS);
        self.alternatives = number.ok_or_else(|| {
            Problem::bad_parameter(format!(
                "the parameter `alternatives` is a number from 0 to {MOST_MEMBERS}"
            ))
        })?;
        Ok(())
    }
}

/// Source of a setting: a field of a request for a site, or a parameter of one by a program.
enum Setter {
    Field(&'static str),
    Parameter(&'static str),
}

type Set = fn(&mut RequestParts, &str) -> Result<(), Problem>;

static SETTERS: &[(Setter, Set)] = &[
    (Setter::Field(CLASS), RequestParts::set_class),
    (
        Setter::Field(RESPONSE_TIME),
        RequestParts::set_response_time,
    ),
    (Setter::Field(SESSION), RequestParts::set_session),
    (Setter::Parameter("class"), RequestParts::set_class),
    (
        Setter::Parameter("response_time"),
        RequestParts::set_response_time,
    ),
    (Setter::Parameter("session"), RequestParts::set_session),
    (Setter::Parameter("avoid"), RequestParts::set_avoid),
    (Setter::Parameter("current"), RequestParts::set_current),
    (
        Setter::Parameter("alternatives"),
        RequestParts::set_alternatives,
    ),
];

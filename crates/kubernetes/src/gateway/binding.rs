//! Sessions of HTTPRoutes and GRPCRoutes: binding of clients to members of a group by a cookie, or by a header field.

use super::objects::{Reference, SessionPersistence};
use super::text::{hash_of, quote};
use super::values::read_duration;

/// Shortest time of a session, in milliseconds.
const SHORTEST: u64 = 1_000;

/// Binding of clients to members of a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Binding {
    /// Name of the cookie or field; a name of the balancer's, if there is none.
    name: Option<String>,
    /// True if a field of requests and responses binds clients, and not a cookie.
    is_header: bool,
    /// Milliseconds for which browsers keep the cookie.
    max_age: Option<u64>,
    /// Milliseconds after which the balancer binds a client anew.
    max_life: Option<u64>,
    /// Milliseconds without a request after which the balancer binds a client anew.
    max_idle: Option<u64>,
}

impl Binding {
    /// Reads the binding of a rule.
    ///
    /// # Errors
    ///
    /// The reason why the binding is not supported.
    pub(crate) fn read(of: &SessionPersistence) -> Result<Self, String> {
        let is_header = match of.kind.as_deref().unwrap_or("Cookie") {
            "Cookie" => false,
            "Header" => true,
            kind => {
                return Err(format!(
                    "sessionPersistence of type {kind} is not supported; use Cookie or Header"
                ));
            }
        };
        let read = |time: Option<&String>| {
            let time = time.map(|time| read_duration(time)).transpose()?;
            Ok::<_, String>(time.map(|millis| millis.max(SHORTEST)))
        };
        let age = read(of.absolute_timeout.as_ref())?;
        let max_idle = read(of.idle_timeout.as_ref())?;
        let lifetime = of.cookie_config.lifetime_type.as_deref();
        let is_permanent = !is_header && lifetime == Some("Permanent");
        Ok(Binding {
            name: of.session_name.clone().filter(|name| !name.is_empty()),
            is_header,
            max_age: age.filter(|_| is_permanent),
            // Browsers keep a permanent cookie for so long, but each new time of a request has its cookie set anew.
            max_life: age.filter(|_| !is_permanent || max_idle.is_some()),
            max_idle,
        })
    }

    /// Returns the name of the cookie or field, if the rule has one.
    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Adds a part to the name of the cookie or field, if the rule has one.
    pub(super) fn extend_name(&mut self, part: &str) {
        if let Some(name) = &mut self.name {
            name.push('-');
            name.push_str(part);
        }
    }

    /// Returns the binding to one of several targets of a rule: each target has a cookie of its own.
    pub(super) fn of_several(&self, target: &Reference) -> Self {
        let mut binding = self.clone();
        let port = target.port.unwrap_or_default();
        binding.extend_name(&format!("{}-{port}", target.name));
        binding
    }

    /// Returns the part of a group's name that tells groups with different bindings apart.
    pub(super) fn label(&self) -> String {
        let name = self.name.as_deref().unwrap_or_default();
        let mut label = format!("{name}-{}", self.max_age.unwrap_or_default());
        let times = [("life", self.max_life), ("idle", self.max_idle)];
        for (kind, millis) in times {
            if let Some(millis) = millis {
                label += &format!("-{kind}{millis}");
            }
        }
        if self.is_header {
            label.push_str("-header");
        }
        label
    }

    /// Returns the line of the binding in the table of the group `group`.
    pub(super) fn write_line(&self, group: &str) -> String {
        let name = match (&self.name, self.is_header) {
            (Some(name), true) => Some(format!("header = {}", quote(name))),
            (Some(name), false) => Some(format!("cookie = {}", quote(name))),
            (None, true) => Some(format!("header = \"X-Session-{:016x}\"", hash_of(group))),
            (None, false) => None,
        };
        let times = [
            ("max_age", self.max_age),
            ("max_life", self.max_life),
            ("max_idle", self.max_idle),
        ];
        let times = times.into_iter().filter_map(|(key, millis)| {
            let millis = millis?;
            Some(format!("{key} = \"{millis}ms\""))
        });
        let keys: Vec<String> = name.into_iter().chain(times).collect();
        format!("sticky = {{ {} }}", keys.join(", "))
    }
}

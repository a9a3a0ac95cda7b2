//! Cross-origin resource sharing as it is in force: the configuration, and the values of fields made of it.

use std::time::Duration;

use crate::config::Cors;

/// Permissions for pages of other origins, for requests that go one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorsPolicy {
    config: Cors,
    methods: Box<str>,
    headers: Box<str>,
    exposed: Box<str>,
    max_age: Option<Box<str>>,
}

impl CorsPolicy {
    /// The policy that `config` describes; `None` where members decide.
    pub fn new(config: Option<&Cors>) -> Option<Self> {
        let config = config.filter(|config| config.is_on())?;
        let seconds = |time: Duration| time.as_secs().to_string().into();
        Some(CorsPolicy {
            methods: config.allow_methods.join(", ").into(),
            headers: config.allow_headers.join(", ").into(),
            exposed: config.expose_headers.join(", ").into(),
            max_age: config.max_age.map(seconds),
            config: config.clone(),
        })
    }

    /// Permissions as the configuration says them.
    pub fn config(&self) -> &Cors {
        &self.config
    }

    /// Methods for `Access-Control-Allow-Methods`; `None` stands for all.
    pub fn methods(&self) -> Option<&str> {
        let is_all = Cors::has_all(&self.config.allow_methods);
        (!is_all).then_some(&*self.methods)
    }

    /// Names for `Access-Control-Allow-Headers`, empty without any; `None` stands for all.
    pub fn headers(&self) -> Option<&str> {
        let is_all = Cors::has_all(&self.config.allow_headers);
        (!is_all).then_some(&*self.headers)
    }

    /// Names for `Access-Control-Expose-Headers`, empty without any.
    pub fn exposed(&self) -> &str {
        &self.exposed
    }

    /// Seconds for `Access-Control-Max-Age`, if they are said.
    pub fn max_age(&self) -> Option<&str> {
        self.max_age.as_deref()
    }

    /// True if each origin gets the same response, so that caches need not tell them apart.
    pub fn is_same_for_all(&self) -> bool {
        self.config.allows_all_origins() && !self.config.allow_credentials
    }

    /// True if pages of `origin` may read responses. `null` stands for pages that anybody can make, which get nobody's
    /// credentials.
    pub fn grants(&self, origin: &str) -> bool {
        let is_anybody = origin == "null" && self.config.allow_credentials;
        self.config.allows_origin(origin) && !is_anybody
    }
}

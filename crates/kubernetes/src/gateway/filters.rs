//! Filters of rules and of targets become actions of the configuration.

use evenkeel_config::MAX_MIRRORS;

use super::backends::{Groups, NOBODY, Referrer};
use super::conditions::Refusal;
use super::field_edits::FieldEdits;
use super::objects::{Cors, Filter, HeaderModifier, PathChange, Redirect};
use super::text::{is_exact_host, quote, quote_list, quote_table};

/// Actions by filters.
#[derive(Clone, Debug, Default)]
pub(crate) struct FilterText {
    /// Lines of the actions, but for a redirect, changes of fields and mirrors.
    pub(super) lines: Vec<String>,
    /// Mirrors, as inline tables.
    mirrors: Vec<String>,
    /// Changes of fields.
    pub(super) edits: FieldEdits,
    /// Redirect in place of a request to a member.
    pub(super) redirect: Option<Redirect>,
    /// True if the path is rewritten for members.
    pub(super) rewrites: bool,
    /// True if the prefix of the path is rewritten.
    pub(super) rewrites_prefix: bool,
    /// Reason why some targets cannot be used.
    pub(crate) references: Option<Refusal>,
}

/// Escapes braces, so that a brace of the configuration's text is a brace.
pub(super) fn escape(text: &str) -> String {
    text.replace('{', "{{")
}

/// Writes changes of fields. `host` is a host name for requests to members.
pub(super) fn write_changes(changes: &HeaderModifier, host: Option<&str>) -> Option<String> {
    let mut parts: Vec<String> = Vec::new();
    let mut table = |key: &str, fields: Vec<(&str, &str)>| {
        let mut once: Vec<(&str, String)> = Vec::new();
        for (name, value) in fields {
            let mut known = once.iter();
            if !known.any(|(known, _)| known.eq_ignore_ascii_case(name)) {
                once.push((name, quote(&escape(value))));
            }
        }
        if !once.is_empty() {
            parts.push(format!("{key} = {}", quote_table(once)));
        }
    };
    let set = changes.set.iter();
    let set = set.map(|of| (of.name.as_str(), of.value.as_str()));
    let host = host.map(|host| ("Host", host));
    table("set", host.into_iter().chain(set).collect());
    let add = changes.add.iter();
    let add = add.map(|of| (of.name.as_str(), of.value.as_str()));
    table("add", add.collect());
    if !changes.remove.is_empty() {
        let names = changes.remove.iter().map(String::as_str);
        parts.push(format!("remove = {}", quote_list(names)));
    }
    (!parts.is_empty()).then(|| format!("{{ {} }}", parts.join(", ")))
}

/// Writes the permissions for pages of other origins.
fn write_cors(cors: &Cors) -> String {
    let mut parts = Vec::new();
    for (key, list) in [
        ("allow_origins", &cors.allow_origins),
        ("allow_methods", &cors.allow_methods),
        ("allow_headers", &cors.allow_headers),
        ("expose_headers", &cors.expose_headers),
    ] {
        if !list.is_empty() {
            let names = list.iter().map(String::as_str);
            parts.push(format!("{key} = {}", quote_list(names)));
        }
    }
    if cors.allow_credentials == Some(true) {
        parts.push("allow_credentials = true".into());
    }
    // The specification's default.
    parts.push(format!("max_age = \"{}s\"", cors.max_age.unwrap_or(5)));
    format!("{{ {} }}", parts.join(", "))
}

/// Returns the new prefix of a path; `None` if the whole path is replaced.
fn read_prefix(change: &PathChange) -> Result<Option<&str>, String> {
    match change.kind.as_str() {
        "ReplacePrefixMatch" => Ok(Some(change.replace_prefix_match.as_deref().unwrap_or("/"))),
        "ReplaceFullPath" => Ok(None),
        kind => Err(format!("a change of paths of type {kind} is not supported")),
    }
}

/// Writes a prefix as the configuration wants one.
fn write_prefix(prefix: &str) -> String {
    let plain = prefix.trim_end_matches('/');
    let plain = if plain.is_empty() { "/" } else { plain };
    format!("rewrite_prefix = {}", quote(plain))
}

impl FilterText {
    /// Translates filters.
    ///
    /// # Errors
    ///
    /// The reason why a filter is not supported.
    pub(super) fn read(
        filters: &[Filter],
        referrer: Referrer<'_>,
        groups: &mut Groups,
    ) -> Result<Self, String> {
        let mut text = FilterText::default();
        for filter in filters {
            text.read_filter(filter, referrer, groups)?;
        }
        Ok(text)
    }

    /// Translates a filter.
    ///
    /// # Errors
    ///
    /// The reason why the filter is not supported.
    fn read_filter(
        &mut self,
        filter: &Filter,
        referrer: Referrer<'_>,
        groups: &mut Groups,
    ) -> Result<(), String> {
        let edits = &mut self.edits;
        match filter.kind.as_str() {
            "RequestHeaderModifier" => {
                edits.request = filter.request_header_modifier.clone().unwrap_or_default();
            }
            "ResponseHeaderModifier" => {
                edits.response = filter.response_header_modifier.clone().unwrap_or_default();
            }
            "RequestRedirect" => {
                self.redirect = Some(filter.request_redirect.clone().unwrap_or_default());
            }
            "URLRewrite" => {
                let rewrite = filter.url_rewrite.clone().unwrap_or_default();
                edits.host = rewrite.hostname;
                if let Some(wrong) = edits.host.as_deref().filter(|host| !is_exact_host(host)) {
                    return Err(format!("hostname {wrong:?} is no host name; change it"));
                }
                if let Some(path) = &rewrite.path {
                    self.rewrites = true;
                    let line = match read_prefix(path)? {
                        Some(prefix) => {
                            self.rewrites_prefix = true;
                            write_prefix(prefix)
                        }
                        None => {
                            let path = path.replace_full_path.as_deref();
                            format!("rewrite_path = {}", quote(path.unwrap_or("/")))
                        }
                    };
                    self.lines.push(line);
                }
            }
            "RequestMirror" => self.read_mirror(filter, referrer, groups)?,
            "CORS" => {
                let cors = filter.cors.clone().unwrap_or_default();
                self.lines.push(format!("cors = {}", write_cors(&cors)));
            }
            kind => {
                return Err(format!(
                    "a filter of type {kind} is not supported; remove the filter"
                ));
            }
        }
        Ok(())
    }

    fn read_mirror(
        &mut self,
        filter: &Filter,
        referrer: Referrer<'_>,
        groups: &mut Groups,
    ) -> Result<(), String> {
        let mirror = filter.request_mirror.clone().unwrap_or_default();
        let percent = match (&mirror.percent, &mirror.fraction) {
            (Some(percent), _) => f64::from(*percent),
            (None, Some(of)) => {
                let all = of.denominator.unwrap_or(100).max(1);
                f64::from(of.numerator) * 100.0 / f64::from(all)
            }
            (None, None) => 100.0,
        };
        match referrer.find_group(&mirror.backend_ref, None, groups) {
            // Certificates of the members cannot be verified.
            Ok(group) if group == NOBODY => {}
            Ok(group) => self.mirrors.push(format!(
                "{{ group = {}, percent = {:?} }}",
                quote(&group),
                percent.clamp(0.0, 100.0)
            )),
            Err(refusal) => self.references = Some(refusal),
        }
        self.check_mirrors()
    }

    fn check_mirrors(&self) -> Result<(), String> {
        match self.mirrors.len() > MAX_MIRRORS {
            true => Err(format!(
                "more than {MAX_MIRRORS} filters of type RequestMirror are not supported; remove some"
            )),
            false => Ok(()),
        }
    }

    /// Writes the line of the mirrors, if there are some.
    pub(super) fn write_mirrors(&self) -> Option<String> {
        match self.mirrors.as_slice() {
            [] => None,
            [only] => Some(format!("mirror = {only}")),
            several => Some(format!("mirror = [{}]", several.join(", "))),
        }
    }

    /// Adds the actions by filters of the rule's only target. A change to the path goes before that of the rule.
    pub(super) fn add_actions(&mut self, own: FilterText) -> Result<(), String> {
        self.edits.add_edits(&own.edits);
        if own.rewrites {
            self.lines.retain(|line| !line.starts_with("rewrite_"));
            self.lines.extend(own.lines);
            (self.rewrites, self.rewrites_prefix) = (true, own.rewrites_prefix);
        }
        self.mirrors.extend(own.mirrors);
        self.references = self.references.take().or(own.references);
        self.check_mirrors()
    }

    /// Reads the change of the path of a redirect.
    pub(super) fn read_redirect_path(&mut self) -> Result<(), String> {
        let path = self.redirect.as_ref().and_then(|of| of.path.as_ref());
        if let Some(prefix) = path.map(read_prefix).transpose()?.flatten() {
            let line = write_prefix(prefix);
            self.lines.push(line);
            self.rewrites_prefix = true;
        }
        Ok(())
    }
}

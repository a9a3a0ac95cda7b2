//! Languages of configuration files that are not TOML: those of other balancers, which people give to this one.

/// A language in which a configuration file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Dialect of HAProxy.
    Haproxy,
    /// Dialect of nginx.
    Nginx,
    /// YAML, as Traefik and Envoy have it.
    Yaml,
    /// Document in JSON.
    Json,
}

/// Sections of HAProxy, which stand at the beginning of a line.
const SECTIONS: [&str; 13] = [
    "backend",
    "cache",
    "crt-store",
    "defaults",
    "frontend",
    "global",
    "http-errors",
    "listen",
    "mailers",
    "peers",
    "program",
    "resolvers",
    "userlist",
];

/// Number of lines that are looked at.
const MAX_LINES: usize = 2000;

impl Dialect {
    /// The language of `text`; `None` if it may be TOML.
    pub fn from_text(text: &str) -> Option<Self> {
        let lines = text.lines().take(MAX_LINES);
        let lines =
            lines.filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'));
        let mut lines = lines.peekable();
        if lines.peek()?.trim_start().starts_with('{') {
            return Some(Dialect::Json);
        }
        let (mut toml, mut haproxy, mut nginx, mut yaml) = (0_usize, 0_usize, 0_usize, 0_usize);
        for line in lines {
            toml += usize::from(is_toml(line));
            haproxy += usize::from(is_section(line));
            nginx += usize::from(is_directive(line));
            yaml += usize::from(is_mapping(line));
        }
        match haproxy.max(nginx).max(yaml) {
            // One line of another language is a slip.
            most if most <= toml => None,
            most if haproxy > 0 && haproxy.max(nginx) == most && haproxy >= nginx => {
                Some(Dialect::Haproxy)
            }
            most if nginx == most => Some(Dialect::Nginx),
            _ if haproxy > 0 => Some(Dialect::Haproxy),
            _ => Some(Dialect::Yaml),
        }
    }

    /// Name of the language with its article, and what to do with a file in it.
    pub(crate) fn remedy(self, file: &str) -> String {
        match self {
            Dialect::Haproxy | Dialect::Nginx => {
                let name = match self {
                    Dialect::Haproxy => "a configuration of HAProxy",
                    _ => "a configuration of nginx",
                };
                format!(
                    "this is {name}, and Evenkeel's files are TOML: `evenkeel convert {file}` prints it as TOML (docs/coming-from.md)"
                )
            }
            Dialect::Yaml => "this is YAML, and Evenkeel's files are TOML, as in [rule.web]: docs/coming-from.md has the \
                              common tasks of Traefik and Envoy in both"
                .into(),
            Dialect::Json => {
                "this is JSON, and Evenkeel's files are TOML, as in [rule.web]: docs/coming-from.md has examples".into()
            }
        }
    }
}

/// True if a line can stand in TOML only: the header of a table, or a key with a value.
fn is_toml(line: &str) -> bool {
    let line = line.trim();
    let is_key = |c: char| c.is_ascii_alphanumeric() || "_-.\"' ".contains(c);
    let is_header = line.starts_with('[') && line.ends_with(']');
    is_header
        || line.split_once('=').is_some_and(|(key, _)| {
            // HAProxy and nginx have no `=` after a single word.
            !key.is_empty() && key.chars().all(is_key) && key.split_whitespace().count() == 1
        })
}

fn is_section(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let is_known = |word: &str| SECTIONS.contains(&word);
    !line.starts_with([' ', '\t'])
        && words.next().is_some_and(is_known)
        && words.count() <= 3
        && !line.contains('{')
}

/// True if a line begins or ends a block of nginx, or is one of its directives.
fn is_directive(line: &str) -> bool {
    let line = line.split(" #").next().unwrap_or_default().trim();
    let word = line.split([' ', '\t', ';', '{']).next().unwrap_or_default();
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    !word.is_empty() && word.chars().all(is_name) && line.ends_with([';', '{', '}'])
}

/// True if a line is an entry of YAML.
fn is_mapping(line: &str) -> bool {
    let line = line.trim();
    let line = line.strip_prefix("- ").unwrap_or(line).trim_start();
    let key = line
        .split_once(": ")
        .map(|(key, _)| key)
        .or_else(|| line.strip_suffix(':'));
    let is_key = |c: char| c.is_ascii_alphanumeric() || "_-.\"'/@".contains(c);
    line == "---" || key.is_some_and(|key| !key.is_empty() && key.chars().all(is_key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m7_m8_languages_are_known_by_their_lines() {
        for (text, dialect) in [
            (
                "global\n  daemon\nfrontend a\n  bind :80\n",
                Some(Dialect::Haproxy),
            ),
            (
                "# old\nlisten a\n  bind :80\n  server b 10.0.0.1:80 check\n",
                Some(Dialect::Haproxy),
            ),
            (
                "http {\n  server {\n    listen 80;\n  }\n}\n",
                Some(Dialect::Nginx),
            ),
            (
                "upstream a { server 10.0.0.1:80; }\nserver { listen 80; }\n",
                Some(Dialect::Nginx),
            ),
            ("proxy_set_header A b=c;\n", Some(Dialect::Nginx)),
            (
                "http:\n  routers:\n    a: { rule: x }\n",
                Some(Dialect::Yaml),
            ),
            (
                "---\nlisten: 0.0.0.0:80\nmembers:\n  - 10.0.0.1:80\n",
                Some(Dialect::Yaml),
            ),
            ("{\n  \"rule\": {}\n}\n", Some(Dialect::Json)),
            ("", None),
            ("# nothing\n", None),
            ("[rule.web]\nlisten: 80\n", None),
            ("workers = 3\nlisten: 80\n", None),
            ("half a line\n", None),
            ("members = [\n  global\n", None),
            (
                "http {\n log_format a 'x'\n  \"host=$host\"\n  ;\n server {\n  listen 80;\n }\n}\n",
                Some(Dialect::Nginx),
            ),
        ] {
            assert_eq!(Dialect::from_text(text), dialect, "{text}");
        }
    }
}

//! `[rule.NAME.compression]`: compression of responses to clients.

use crate::fields;
use crate::schema::field::{Blank, Element, Texts, blank, choice_field};
use crate::schema::key::{describe_keys, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

section! {
    /// Compression of responses.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Compression {}
    keys COMPRESSION {
        /// Codings for clients: one, or a list. If a client likes several codings equally, the first of your
        /// list is used.
        codings: Vec<Coding> = vec![Coding::Zstd, Coding::Brotli, Coding::Gzip]; r#"["br", "gzip"]"#,
        /// Media types of responses to compress. End a type in `/*` to match all types with the same beginning.
        /// Leave out images, video and archives: they are compressed already.
        types: Vec<String> [Text(TYPE)] = TYPES.map(String::from).to_vec(); r#"["text/*", "application/json"]"#,
        /// Minimum size of a response to compress. Responses with a known, smaller length stay unchanged.
        min_size: usize [Bytes(0, 1024 * 1024 * 1024)] = 1024; r#""256B""#,
        /// Effort of compression: from 1, which is fast, to 9, which makes the smallest responses and takes
        /// many times the CPU time. Raise the level if your network is slower than your CPU.
        level: u32 [Number(1.0, 9.0, "")] = 4; "6",
    }
}

/// Media types compressed by default.
const TYPES: [&str; 14] = [
    "text/html",
    "text/plain",
    "text/css",
    "text/xml",
    "text/csv",
    "text/javascript",
    "application/javascript",
    "application/json",
    "application/ld+json",
    "application/manifest+json",
    "application/xml",
    "application/xhtml+xml",
    "application/wasm",
    "image/svg+xml",
];

/// Media type, or all types of a kind.
const TYPE: Texts = (
    "a media type as in \"text/html\", or all of a kind as in \"text/*\"",
    |text| {
        let is_token = |part: &str| {
            !part.is_empty()
                && part
                    .bytes()
                    .all(|b| b.is_ascii_graphic() && !b"*;,/\"".contains(&b))
        };
        let parts = text.split_once('/');
        parts.is_some_and(|(kind, name)| is_token(kind) && (name == "*" || is_token(name)))
    },
);

/// A content coding (RFC 9110, section 8.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// Zstandard (RFC 8878).
    Zstd,
    /// Brotli (RFC 7932).
    Brotli,
    /// RFC 1952.
    Gzip,
}

impl Coding {
    /// Name of the coding in HTTP.
    pub fn name(self) -> &'static str {
        match self {
            Coding::Zstd => "zstd",
            Coding::Brotli => "br",
            Coding::Gzip => "gzip",
        }
    }
}

choice_field!(Coding,
    "zstd" => Coding::Zstd,
    "br" => Coding::Brotli,
    "gzip" => Coding::Gzip);

impl Blank for Coding {
    fn blank() -> Self {
        Coding::Gzip
    }
}

impl Element for Coding {
    const NONE: Option<&'static str> = Some("no coding");
}

blank!(Compression);

impl AsTable for Compression {
    const ALLOWED: &'static str = "a table, or true";
    const TRUE: bool = true;

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(COMPRESSION, self, report);
        for (index, coding) in self.codings.iter().enumerate() {
            if self.codings.iter().take(index).any(|other| other == coding) {
                let message = format!("{:?} comes twice", coding.name());
                table.report_problem("codings", message, report);
            }
        }
        if self.types.is_empty() {
            let message = "has no type, so nothing would be compressed: leave `compression` out";
            table.report_problem("types", message, report);
        }
    }
}

impl Compression {
    /// True if responses with this `Content-Type` are compressed.
    pub fn is_for(&self, content_type: &[u8]) -> bool {
        let media_type = fields::media_type(content_type);
        self.types.iter().any(|known| {
            let (known, like) = match known.strip_suffix('*') {
                Some(kind) => (kind.as_bytes(), media_type.get(..kind.len())),
                None => (known.as_bytes(), Some(media_type)),
            };
            like.is_some_and(|like| like.eq_ignore_ascii_case(known))
        })
    }

    /// Returns the coding for a client with these `Accept-Encoding` fields (RFC 9110, section 12.5.3): the
    /// first coding here of those that the client likes best. `None` if the client takes none, or prefers the
    /// content as it is.
    pub fn choose<'a>(&self, accepted: impl Iterator<Item = &'a [u8]>) -> Option<Coding> {
        let mut weights = [None; 3];
        let (mut any, mut identity) = (None, None);
        let elements = accepted.flat_map(|field| field.split(|byte| *byte == b','));
        for element in elements.take(MOST_ACCEPTED) {
            let mut parts = element.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
            let name = parts.next().unwrap_or_default();
            let weight = parts.find_map(weight_of).unwrap_or(1000);
            if name == b"*" {
                any = Some(weight);
            } else if name.eq_ignore_ascii_case(b"identity") {
                identity = Some(weight);
            } else {
                let is = |coding: &Coding| name.eq_ignore_ascii_case(coding.name().as_bytes());
                let known = self.codings.iter().position(is);
                if let Some(place) = known.and_then(|place| weights.get_mut(place)) {
                    *place = Some(weight);
                }
            }
        }
        // Who takes anything rarely knows more than gzip.
        let is_known = |coding, weight: &Option<u32>| weight.is_some() || coding == Coding::Gzip;
        let all = self.codings.iter().zip(&weights).map(|(coding, weight)| {
            let is_known = is_known(*coding, weight);
            (coding, (weight.or(any).unwrap_or(0), is_known))
        });
        // The first of the best ones.
        let best = all.rev().max_by_key(|(_, rank)| *rank);
        let (coding, (weight, _)) = best?;
        (weight > 0 && weight >= identity.unwrap_or(0)).then_some(*coding)
    }
}

/// Maximum number of codings of a client that are looked at.
const MOST_ACCEPTED: usize = 32;

/// Weight in thousandths; an invalid weight is 0.
fn weight_of(parameter: &[u8]) -> Option<u32> {
    let (b'q' | b'Q', rest) = parameter.split_first()? else {
        return None;
    };
    let value = rest.trim_ascii_start().strip_prefix(b"=")?;
    let value = std::str::from_utf8(value.trim_ascii()).ok()?;
    let weight = value
        .parse::<f32>()
        .ok()
        .filter(|q| (0.0..=1.0).contains(q));
    Some((weight.unwrap_or(0.0) * 1000.0) as u32)
}

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc =
        "[Compression](routing.md#compression) of responses, in rules with `protocol = \"http\"`.";
    let keys = [describe_keys(COMPRESSION, Compression::default())];
    TableDoc::new("[rule.NAME.compression]", doc, keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(fields: &[&str]) -> Option<&'static str> {
        let chosen = Compression::default().choose(fields.iter().map(|field| field.as_bytes()));
        chosen.map(Coding::name)
    }

    #[test]
    fn a_client_gets_what_it_likes_best_and_of_equals_the_first() {
        for (fields, coding) in [
            (&["gzip, deflate, br, zstd"][..], Some("zstd")),
            (&["gzip, deflate, br"], Some("br")),
            (&["gzip;q=1.0, br;q=0.5"], Some("gzip")),
            (&["gzip;q=0.8", "BR ; Q=0.9"], Some("br")),
            (&["deflate"], None),
            (&[""], None),
            (&[], None),
            (&["*;q=0.5, zstd;q=0"], Some("gzip")),
            (&["gzip;q=0"], None),
            (&["identity, gzip;q=0.5"], None),
            (&["identity;q=0.5, gzip"], Some("gzip")),
            (&["gzip;q=nonsense"], None),
            (&["gzip;q=7"], None),
            (&[";;;,,,=,gzip"], Some("gzip")),
        ] {
            assert_eq!(chosen(fields), coding, "{fields:?}");
        }
        let many = vec!["x"; 1000].join(",") + ",gzip";
        assert_eq!(chosen(&[&many]), None, "work is bounded");
    }

    #[test]
    fn http_d7_who_accepts_anything_gets_gzip() {
        for (fields, coding) in [
            (&["*"][..], Some("gzip")),
            (&["gzip, *"], Some("gzip")),
            (&["*, br"], Some("br")),
            (&["*;q=0.5, br;q=0.1"], Some("gzip")),
            (&["*, gzip;q=0"], Some("zstd")),
            (&["*;q=0"], None),
        ] {
            assert_eq!(chosen(fields), coding, "{fields:?}");
        }
    }

    #[test]
    fn types_are_compared_without_their_parameters() {
        let usual = Compression::default();
        assert!(usual.is_for(b"Text/HTML; charset=utf-8"));
        assert!(usual.is_for(b"application/json"));
        for not in [&b"image/png"[..], b"text/htmlx", b"text", b""] {
            assert!(!usual.is_for(not), "{not:?}");
        }
        let kind = Compression {
            types: vec!["text/*".into()],
            ..Compression::default()
        };
        assert!(kind.is_for(b"text/x;y") && !kind.is_for(b"application/json"));
    }
}

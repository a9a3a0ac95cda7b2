//! Texts with parts of a request in them.

/// A part of a request that a text can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Scheme of the request, `http` or `https`.
    Scheme,
    /// Host of the request, without the port.
    Host,
    /// Port of the host with the colon, or nothing.
    Port,
    /// Path of the request.
    Path,
    /// Query of the request with the question mark, or nothing.
    Query,
    /// The client's address.
    Client,
    /// Path and query of the request as one value: other characters than letters, digits and `-._~` are percent-encoded.
    EscapedUri,
}

/// Names of the parts.
const PARTS: [(&str, Part); 7] = [
    ("scheme", Part::Scheme),
    ("host", Part::Host),
    ("port", Part::Port),
    ("path", Part::Path),
    ("query", Part::Query),
    ("client", Part::Client),
    ("escaped_uri", Part::EscapedUri),
];

/// A text with parts of a request in it: `{host}` and so on. `{{` is one brace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template(Vec<(Box<str>, Option<Part>)>);

/// A text in which a brace begins no part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected {{scheme}}, {{host}}, {{port}}, {{path}}, {{query}}, {{escaped_uri}} or {{client}} at a brace; {{{{ is a brace"
)]
pub struct NoPart;

impl Template {
    /// Reads a text.
    pub fn parse(text: &str) -> Result<Self, NoPart> {
        let (mut pieces, mut literal, mut rest) = (Vec::new(), String::new(), text);
        while let Some((before, after)) = rest.split_once('{') {
            literal.push_str(before);
            if let Some(after) = after.strip_prefix('{') {
                literal.push('{');
                rest = after;
                continue;
            }
            let (name, after) = after.split_once('}').ok_or(NoPart)?;
            let part = PARTS
                .iter()
                .find(|(known, _)| *known == name)
                .ok_or(NoPart)?;
            pieces.push((std::mem::take(&mut literal).into(), Some(part.1)));
            rest = after;
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            pieces.push((literal.into(), None));
        }
        Ok(Template(pieces))
    }

    /// True if the text is the same for all requests.
    pub fn is_plain(&self) -> bool {
        self.0.iter().all(|(_, part)| part.is_none())
    }

    /// True if the text has this part.
    pub fn has_part(&self, wanted: Part) -> bool {
        self.0.iter().any(|(_, part)| *part == Some(wanted))
    }

    /// Pieces of the text, in order: a text, and a part of the request behind it.
    pub fn pieces(&self) -> impl Iterator<Item = (&str, Option<Part>)> {
        self.0.iter().map(|(text, part)| (&**text, *part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_stand_in_braces() {
        let template = Template::parse("{scheme}://{host}{path}{query}").unwrap();
        let pieces: Vec<_> = template.pieces().collect();
        let wanted = [
            ("", Some(Part::Scheme)),
            ("://", Some(Part::Host)),
            ("", Some(Part::Path)),
            ("", Some(Part::Query)),
        ];
        assert_eq!(pieces, wanted);
        let plain = Template::parse("a {{b}").unwrap();
        assert!(plain.is_plain());
        assert_eq!(plain.pieces().collect::<Vec<_>>(), [("a {b}", None)]);
        for text in ["{", "{hosts}", "{host", "{ host }", "a{}"] {
            assert_eq!(Template::parse(text), Err(NoPart), "{text}");
        }
    }
}

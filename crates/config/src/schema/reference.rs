//! Documentation of tables and their keys, and the chapter of the manual with it.

/// A table of the file with its keys, as the reference and the hints see it.
#[derive(Clone, Debug)]
pub struct TableDoc {
    /// Header of the table in the file; empty for the top.
    pub header: &'static str,
    /// Meaning of the table.
    pub doc: &'static str,
    /// Keys of the table.
    pub keys: Vec<KeyDoc>,
}

/// A key, as the reference sees it.
#[derive(Clone, Debug)]
pub struct KeyDoc {
    /// Name of the key.
    pub name: &'static str,
    /// Name of the key in older files, which is still read.
    pub alias: Option<&'static str>,
    /// Description of allowed values.
    pub allowed: String,
    /// Default of the key as it would stand in the file.
    pub default: Option<String>,
    /// Meaning of the key, in Markdown.
    pub doc: String,
    /// Example of a value.
    pub example: &'static str,
}

impl TableDoc {
    /// The table that begins with `header`, with the keys of all of `keys`.
    pub(crate) fn new(
        header: &'static str,
        doc: &'static str,
        keys: impl IntoIterator<Item = Vec<KeyDoc>>,
    ) -> Self {
        let keys = keys.into_iter().flatten().collect();
        TableDoc { header, doc, keys }
    }

    /// True if the table has, or once had, a key of this name.
    pub(crate) fn has_key(&self, key: &str) -> bool {
        let names = |known: &KeyDoc| known.name == key || known.alias == Some(key);
        self.keys.iter().any(names)
    }

    fn title(&self) -> String {
        match self.header {
            "" => "Top".into(),
            header => format!("`{header}`"),
        }
    }

    /// A line of a list, in Markdown: its name as a link to its chapter, and the first sentence about it.
    pub(crate) fn line(&self) -> String {
        let title = self.title();
        let is_kept = |letter: &char| letter.is_ascii_alphanumeric() || *letter == '_';
        let anchor: String = title.chars().filter(is_kept).collect();
        let anchor = anchor.to_ascii_lowercase();
        let sentence = self
            .doc
            .split_once(". ")
            .map_or(self.doc, |(first, _)| first);
        format!(
            "- [{title}](#{anchor}): {}\n",
            sentence.trim_end_matches('.')
        )
    }

    /// Chapter of the reference, in Markdown.
    pub(crate) fn markdown(&self) -> String {
        let title = self.title();
        let keys = self.keys.iter().map(KeyDoc::markdown).collect::<String>();
        format!("### {title}\n\n{}\n\n{keys}", self.doc)
    }
}

impl KeyDoc {
    fn markdown(&self) -> String {
        let KeyDoc {
            name, doc, example, ..
        } = self;
        let mut facts = format!("- allowed: {}\n", self.allowed);
        if let Some(default) = &self.default {
            facts += &format!("- default: `{default}`\n");
        }
        if let Some(alias) = self.alias {
            facts += &format!("- also read as: `{alias}`\n");
        }
        format!("#### `{name}`\n\n{doc}\n\n{facts}- example: `{name} = {example}`\n\n")
    }
}

//! The file of a paper: its figures, experiments and claims, as TOML (`papers/NAME.toml`).
//!
//! [`read`] puts them together with the functions of the experiments, and returns all errors at once, each with file
//! and line.

use std::collections::BTreeSet;

use toml::de::{DeTable, DeValue};

use crate::claim::{Claim, Contradiction, Mode, Rule, Side};
use crate::paper::{By, Experiment, Paper, Play, Row};

/// Reads the file of the paper called `name`.
///
/// # Errors
///
/// All errors, a line each.
pub(crate) fn read(name: &'static str, text: &str, plays: &[Play]) -> Result<Paper, String> {
    let mut file = File {
        name,
        text,
        errors: Vec::new(),
    };
    let document = match DeTable::parse(text) {
        Ok(document) => document,
        Err(error) => {
            let at = error.span().map_or(0, |span| span.start);
            file.refuse(at, error.message());
            return Err(file.errors.join("\n"));
        }
    };
    let paper = file.read_paper(document.get_ref(), plays);
    match file.errors.is_empty() {
        true => Ok(paper),
        false => Err(file.errors.join("\n")),
    }
}

/// A file that is read, and its errors so far.
struct File<'t> {
    name: &'static str,
    text: &'t str,
    errors: Vec<String>,
}

/// A table of the file: its keys, and where it begins.
#[derive(Clone, Copy)]
struct Section<'t> {
    at: usize,
    keys: &'t DeTable<'t>,
}

impl<'t> Section<'t> {
    fn value(&self, key: &str) -> Option<(usize, &'t DeValue<'t>)> {
        let value = self.keys.get(key)?;
        Some((value.span().start, value.get_ref()))
    }
}

impl<'t> File<'t> {
    /// Notes an error at this byte of the file.
    fn refuse(&mut self, at: usize, error: &str) {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let name = self.name;
        self.errors
            .push(format!("papers/{name}.toml:{line}: {error}"));
    }

    /// Refuses keys that are none of these.
    fn expect_keys(&mut self, section: Section<'_>, known: &[&str]) {
        for key in section.keys.keys() {
            if !known.contains(&key.get_ref().as_ref()) {
                let error = format!(
                    "{}: unknown key; known: {}",
                    key.get_ref(),
                    known.join(", ")
                );
                self.refuse(key.span().start, &error);
            }
        }
    }

    /// Text of a key; empty, and an error, if there is none.
    fn read_text(&mut self, section: Section<'_>, key: &str) -> String {
        let text = self.read_optional(section, key);
        if text.is_empty() && section.value(key).is_none() {
            self.refuse(section.at, &format!("{key}: missing"));
        }
        text
    }

    /// Text of a key; empty if there is none. Lines of a paragraph or of an item of a list are joined.
    fn read_optional(&mut self, section: Section<'_>, key: &str) -> String {
        match section.value(key) {
            None => String::new(),
            Some((_, DeValue::String(text))) => join_lines(text),
            Some((at, _)) => {
                self.refuse(at, &format!("{key}: must be a text"));
                String::new()
            }
        }
    }

    fn read_number(&mut self, at: usize, key: &str, value: &DeValue<'_>) -> f64 {
        let number = match value {
            DeValue::Float(number) => number.as_str().replace('_', "").parse().ok(),
            DeValue::Integer(number) => number.as_str().replace('_', "").parse().ok(),
            _ => None,
        };
        number
            .filter(|number: &f64| number.is_finite())
            .unwrap_or_else(|| {
                self.refuse(at, &format!("{key}: must be a number"));
                0.0
            })
    }

    /// Tables of a list `[[key]]`.
    fn read_list<'d>(&mut self, section: Section<'d>, key: &str) -> Vec<Section<'d>> {
        let Some((at, value)) = section.value(key) else {
            return Vec::new();
        };
        let DeValue::Array(list) = value else {
            self.refuse(at, &format!("{key}: must be a list of tables [[{key}]]"));
            return Vec::new();
        };
        let mut all = Vec::new();
        for value in list {
            let at = value.span().start;
            match value.get_ref() {
                DeValue::Table(keys) => all.push(Section { at, keys }),
                _ => self.refuse(at, &format!("{key}: must be a list of tables [[{key}]]")),
            }
        }
        all
    }

    fn read_paper(&mut self, keys: &DeTable<'_>, plays: &[Play]) -> Paper {
        let section = Section { at: 0, keys };
        let known = ["title", "cite", "differs", "rows", "experiments"];
        self.expect_keys(section, &known);
        let mut experiments: Vec<Experiment> = Vec::new();
        for section in self.read_list(section, "experiments") {
            let experiment = self.read_experiment(section, plays);
            let same = |other: &Experiment| other.name == experiment.name;
            if experiments.iter().any(same) {
                let error = format!("{}: is there twice", experiment.name);
                self.refuse(section.at, &error);
            }
            experiments.push(experiment);
        }
        for play in plays {
            if !experiments.iter().any(|one| one.name == play.experiment) {
                let error = format!(
                    "experiment {}: missing, the program has it",
                    play.experiment
                );
                self.refuse(0, &error);
            }
        }
        let mut rows = Vec::new();
        for section in self.read_list(section, "rows") {
            let row = self.read_row(section);
            if let By::Experiment(name) = &row.by
                && !experiments.iter().any(|one| one.name == *name)
            {
                self.refuse(section.at, &format!("by: no experiment is called {name}"));
            }
            rows.push(row);
        }
        Paper {
            name: self.name,
            title: self.read_text(section, "title"),
            cite: self.read_text(section, "cite"),
            differs: self.read_text(section, "differs"),
            rows,
            experiments,
        }
    }

    fn read_row(&mut self, section: Section<'_>) -> Row {
        self.expect_keys(section, &["what", "shows", "by", "not_run"]);
        let [by, not_run] = ["by", "not_run"].map(|key| self.read_optional(section, key));
        if by.is_empty() == not_run.is_empty() {
            let error = "needs one of by = \"EXPERIMENT\" and not_run = \"REASON\"";
            self.refuse(section.at, error);
        }
        Row {
            what: self.read_text(section, "what"),
            shows: self.read_text(section, "shows"),
            by: match not_run.is_empty() {
                true => By::Experiment(by),
                false => By::Nothing(not_run),
            },
        }
    }

    fn read_experiment(&mut self, section: Section<'_>, plays: &[Play]) -> Experiment {
        let known = ["name", "title", "set_up", "set_up_real", "claims"];
        self.expect_keys(section, &known);
        let name = self.read_text(section, "name");
        let play = plays.iter().find(|play| play.experiment == name);
        if play.is_none() {
            let known: Vec<&str> = plays.iter().map(|play| play.experiment).collect();
            let known = known.join(", ");
            let error = format!("name: the program has no experiment {name}; known: {known}");
            self.refuse(section.at, &error);
        }
        let set_up_real = self.read_optional(section, "set_up_real");
        if let Some(play) = play
            && play.real.is_some() == set_up_real.is_empty()
        {
            let error = match play.real {
                Some(_) => "set_up_real: missing, the experiment runs with real programs",
                None => "set_up_real: the experiment has no run with real programs",
            };
            self.refuse(section.at, error);
        }
        let mut ids = BTreeSet::new();
        let mut claims = Vec::new();
        for section in self.read_list(section, "claims") {
            let claim = self.read_claim(section);
            if !ids.insert(claim.id.clone()) {
                self.refuse(section.at, &format!("{}: is there twice", claim.id));
            }
            claims.push(claim);
        }
        self.expect_pairs(section.at, &claims);
        Experiment {
            title: self.read_text(section, "title"),
            set_up: self.read_text(section, "set_up"),
            set_up_real,
            claims,
            simulate: play.and_then(|play| play.simulate),
            real: play.and_then(|play| play.real),
            name,
        }
    }

    fn read_claim(&mut self, section: Section<'_>) -> Claim {
        const RULES: [&str; 6] = ["at_most", "at_least", "within", "about", "order", "excess"];
        const KNOWN: [&str; 12] = [
            "id",
            "says",
            "published",
            "measured",
            "unit",
            "better",
            "draws",
            "own",
            "by_set_up",
            "contradicts",
            "excludes",
            "why",
        ];
        self.expect_keys(section, &[&KNOWN[..], &RULES].concat());
        let claim = Claim {
            id: self.read_text(section, "id"),
            says: self.read_text(section, "says"),
            published: self.read_text(section, "published"),
            measured: self.read_text(section, "measured"),
            unit: self.read_optional(section, "unit"),
            rule: self.read_rule(section, &RULES),
            better: self.read_word(section, "better", &SIDES),
            is_draw: self.read_flag(section, "draws"),
            is_own: self.read_flag(section, "own"),
            by_set_up: self
                .read_word(section, "by_set_up", &SET_UPS)
                .unwrap_or_default()
                .to_vec(),
            contradiction: self.read_contradiction(section),
            why: self.read_optional(section, "why"),
        };
        if matches!(
            (claim.rule, claim.better),
            (Rule::AtMost(_), Some(Side::Higher)) | (Rule::AtLeast(_), Some(Side::Lower))
        ) {
            self.refuse(section.at, "better: with this rule no value fails");
        }
        if claim.contradiction.is_some() && claim.is_own {
            let error = "own: a claim that the paper does not make cannot contradict the paper";
            self.refuse(section.at, error);
        }
        claim
    }

    /// The one rule of a claim.
    fn read_rule(&mut self, section: Section<'_>, rules: &[&'static str]) -> Rule {
        let stated: Vec<_> = (rules.iter())
            .filter_map(|&key| Some((key, section.value(key)?)))
            .collect();
        match stated[..] {
            [(key @ "within", (at, DeValue::Array(pair)))] if pair.len() == 2 => {
                let numbers: Vec<f64> = (pair.iter())
                    .map(|value| self.read_number(value.span().start, key, value.get_ref()))
                    .collect();
                if numbers[0] > numbers[1] {
                    self.refuse(at, "within: the lower bound is above the upper one");
                }
                Rule::Within(numbers[0], numbers[1])
            }
            [(key, (at, value))] if key != "within" => {
                let number = self.read_number(at, key, value);
                match key {
                    "at_most" => Rule::AtMost(number),
                    "at_least" => Rule::AtLeast(number),
                    "about" => Rule::About(number),
                    "order" => {
                        if number == 1.0 {
                            self.refuse(at, "order: a ratio of 1 is no order");
                        }
                        Rule::Order(number)
                    }
                    _ => {
                        if number <= 0.0 {
                            self.refuse(at, "excess: must be above 0");
                        }
                        Rule::Excess(number)
                    }
                }
            }
            _ => {
                let error = "needs one rule: at_most, at_least, about, order or excess = NUMBER, or \
                             within = [FROM, TO]";
                self.refuse(section.at, error);
                Rule::AtMost(0.0)
            }
        }
    }

    /// True if a key is `true`.
    fn read_flag(&mut self, section: Section<'_>, key: &str) -> bool {
        match section.value(key) {
            None => false,
            Some((_, DeValue::Boolean(flag))) => *flag,
            Some((at, _)) => {
                self.refuse(at, &format!("{key}: must be true or false"));
                false
            }
        }
    }

    /// Meaning of a key that has one of several words.
    fn read_word<T: Copy>(
        &mut self,
        section: Section<'_>,
        key: &str,
        words: &[(&str, T)],
    ) -> Option<T> {
        let (at, _) = section.value(key)?;
        let word = self.read_optional(section, key);
        let found = words.iter().find(|(name, _)| *name == word);
        if found.is_none() {
            let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
            self.refuse(at, &format!("{key}: must be {}", names.join(" or ")));
        }
        found.map(|(_, meaning)| *meaning)
    }

    /// Other statement of the paper that a claim contradicts.
    fn read_contradiction(&mut self, section: Section<'_>) -> Option<Contradiction> {
        let other = self.read_optional(section, "excludes");
        let Some((at, value)) = section.value("contradicts") else {
            return (!other.is_empty()).then_some(Contradiction::Excludes(other));
        };
        if !other.is_empty() {
            self.refuse(
                at,
                "contradicts: there is excludes, too: one of them is enough",
            );
        }
        let DeValue::Table(keys) = value else {
            self.refuse(
                at,
                "contradicts: must be a table { number, at_most or at_least, arithmetic }",
            );
            return None;
        };
        let section = Section { at, keys };
        self.expect_keys(section, &["number", "at_most", "at_least", "arithmetic"]);
        let mut bound = |key: &str, none: f64| match section.value(key) {
            Some((at, value)) => self.read_number(at, key, value),
            None => none,
        };
        let number = bound("number", f64::NAN);
        let possible = (
            bound("at_least", f64::NEG_INFINITY),
            bound("at_most", f64::INFINITY),
        );
        let contradiction = Contradiction::Arithmetic {
            number,
            possible,
            text: self.read_text(section, "arithmetic"),
        };
        if !contradiction.is_proven() {
            let error = "contradicts: number must be there, and below at_least or above at_most";
            self.refuse(at, error);
        }
        Some(contradiction)
    }

    /// Refuses claims that exclude none, or one that does not exclude them.
    fn expect_pairs(&mut self, at: usize, claims: &[Claim]) {
        let excludes = |claim: &Claim, other: &str| {
            claim.contradiction == Some(Contradiction::Excludes(other.to_owned()))
        };
        for claim in claims {
            if let Some(Contradiction::Excludes(other)) = &claim.contradiction
                && !claims
                    .iter()
                    .any(|one| one.id == *other && excludes(one, &claim.id))
            {
                let error = format!(
                    "{}: excludes {other}, which must be a claim that excludes {}",
                    claim.id, claim.id
                );
                self.refuse(at, &error);
            }
        }
    }
}

/// Words of `better`.
const SIDES: [(&str, Side); 2] = [("lower", Side::Lower), ("higher", Side::Higher)];

/// Words of `by_set_up`.
const SET_UPS: [(&str, &[Mode]); 3] = [
    ("virtual", &[Mode::Simulated]),
    ("real", &[Mode::Real]),
    ("both", &[Mode::Simulated, Mode::Real]),
];

/// Joins the lines of paragraphs and of items of lists, as Markdown does: an empty line separates
/// paragraphs, a line that begins with `- ` begins an item.
fn join_lines(text: &str) -> String {
    let mut joined = String::with_capacity(text.len());
    for line in text.trim().lines().map(str::trim) {
        if line.is_empty() {
            joined.push_str("\n\n");
        } else {
            let is_first = joined.is_empty() || joined.ends_with('\n');
            if !is_first {
                joined.push(if line.starts_with("- ") { '\n' } else { ' ' });
            }
            joined.push_str(line);
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::Findings;

    const PLAYS: &[Play] = &[Play {
        experiment: "one",
        simulate: Some(|_| Findings::default()),
        real: None,
    }];

    const FILE: &str = r#"title = "T"
cite = "C"
differs = '''
a
b

- c
  d
- e
'''

[[rows]]
what = "figure 1"
shows = "S"
by = "one"

[[rows]]
what = "figure 2"
shows = "S"
not_run = "no"

[[experiments]]
name = "one"
title = "T"
set_up = "S"

[[experiments.claims]]
id = "faster"
says = "S"
published = "P"
measured = "M"
unit = "ms"
within = [1, 2.5]
"#;

    #[test]
    fn a_file_is_read_with_the_functions_of_its_experiments() {
        let paper = read("p", FILE, PLAYS).unwrap();
        assert_eq!(paper.differs, "a b\n\n- c d\n- e");
        assert_eq!(paper.rows[0].by, By::Experiment("one".into()));
        assert_eq!(paper.rows[1].by, By::Nothing("no".into()));
        let experiment = &paper.experiments[0];
        assert!(experiment.simulate.is_some());
        assert_eq!(experiment.claims[0].rule, Rule::Within(1.0, 2.5));
        assert_eq!(experiment.claims[0].unit, "ms");
    }

    #[test]
    fn each_error_has_its_file_and_line() {
        for (from, to, wanted) in [
            ("title = \"T\"\ncite", "title = T\ncite", "p.toml:1: "),
            ("cite = \"C\"\n", "", "p.toml:1: cite: missing"),
            ("cite = \"C\"", "cite = 1", "p.toml:2: cite: must be a text"),
            ("cite", "sight", "p.toml:2: sight: unknown key"),
            (
                "by = \"one\"",
                "by = \"two\"",
                "p.toml:12: by: no experiment is called two",
            ),
            ("by = \"one\"\n", "", "p.toml:12: needs one of by"),
            (
                "name = \"one\"",
                "name = \"two\"",
                "the program has no experiment two",
            ),
            (
                "name = \"one\"",
                "name = \"two\"",
                "experiment one: missing",
            ),
            (
                "set_up = \"S\"",
                "set_up = \"S\"\nset_up_real = \"R\"",
                "p.toml:22: set_up_real: ",
            ),
            ("within = [1, 2.5]\n", "", "p.toml:27: needs one rule"),
            (
                "within = [1, 2.5]",
                "within = [1]",
                "p.toml:27: needs one rule",
            ),
            (
                "within = [1, 2.5]",
                "at_most = 1\nat_least = 1",
                "p.toml:27: needs one rule",
            ),
            (
                "within = [1, 2.5]",
                "at_most = \"1\"",
                "p.toml:33: at_most: must be a number",
            ),
            (
                "within = [1, 2.5]",
                "within = [2, 1]",
                "p.toml:33: within: the lower",
            ),
            (
                "within = [1, 2.5]",
                "within = 1",
                "p.toml:27: needs one rule",
            ),
            ("within = [1, 2.5]", "order = 1", "p.toml:33: order: "),
            ("within = [1, 2.5]", "excess = 0", "p.toml:33: excess: "),
            (
                "unit = \"ms\"",
                "better = \"more\"",
                "p.toml:32: better: must be lower or higher",
            ),
            (
                "within = [1, 2.5]",
                "at_most = 1\nbetter = \"higher\"",
                "p.toml:27: better: with this rule no value fails",
            ),
            (
                "unit = \"ms\"",
                "draws = 1",
                "p.toml:32: draws: must be true",
            ),
            (
                "unit = \"ms\"",
                "by_set_up = \"all\"",
                "p.toml:32: by_set_up: must be virtual or real or both",
            ),
            (
                "unit = \"ms\"",
                "contradicts = 1",
                "p.toml:32: contradicts: must be a table",
            ),
            (
                "unit = \"ms\"",
                "contradicts = { number = 1, at_most = 2, arithmetic = \"T\" }",
                "p.toml:32: contradicts: number must be there, and below",
            ),
            (
                "unit = \"ms\"",
                "contradicts = { number = 3, at_most = 2 }",
                "p.toml:32: arithmetic: missing",
            ),
            (
                "unit = \"ms\"",
                "own = true\ncontradicts = { number = 3, at_most = 2, arithmetic = \"T\" }",
                "p.toml:27: own: a claim that the paper does not make",
            ),
            (
                "unit = \"ms\"",
                "excludes = \"other\"",
                "faster: excludes other, which must be a claim",
            ),
        ] {
            let text = FILE.replacen(from, to, 1);
            assert_ne!(text, FILE);
            let error = read("p", &text, PLAYS).unwrap_err();
            assert!(error.contains(wanted), "{wanted}: {error}");
        }
    }

    #[test]
    fn a_claim_says_how_it_is_judged() {
        let claim = |keys: &str| {
            let text = FILE.replacen("within = [1, 2.5]", keys, 1);
            let paper = read("p", &text, PLAYS).unwrap_or_else(|errors| panic!("{errors}"));
            paper.experiments[0].claims[0].clone()
        };
        let number = claim("about = 3\nbetter = \"higher\"\ndraws = true\nwhy = \"W\"");
        assert_eq!(number.rule, Rule::About(3.0));
        assert_eq!(number.better, Some(Side::Higher));
        assert!(number.is_draw && !number.is_own && number.by_set_up.is_empty());
        assert_eq!(number.why, "W");
        let own = claim("excess = 3\nown = true\nby_set_up = \"real\"");
        assert_eq!((own.rule, own.is_own), (Rule::Excess(3.0), true));
        assert_eq!(own.by_set_up, [Mode::Real]);
        let impossible = claim(
            "order = 0.5\ncontradicts = { number = 3, at_least = 4, arithmetic = \"2 + 2 = 4\" }",
        );
        assert_eq!(impossible.rule, Rule::Order(0.5));
        assert_eq!(
            impossible.contradiction,
            Some(Contradiction::Arithmetic {
                number: 3.0,
                possible: (4.0, f64::INFINITY),
                text: "2 + 2 = 4".into()
            })
        );
    }

    #[test]
    fn all_errors_are_told_at_once() {
        let text = FILE.replace("shows", "show").replace("says", "said");
        let error = read("p", &text, PLAYS).unwrap_err();
        let missing = error.lines().filter(|line| line.contains(": missing"));
        assert_eq!((missing.count(), error.lines().count()), (3, 6), "{error}");
    }
}

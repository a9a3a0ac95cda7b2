//! `evenkeel strategies`.

use std::fmt::Write;

use evenkeel_core::strategy::{Kind, Param};

/// Returns all strategies with their parameters, as text.
pub(crate) fn list_strategies(registry: &[Kind]) -> String {
    let mut text = String::new();
    for (index, kind) in registry.iter().enumerate() {
        let default = if index == 0 { " (the default)" } else { "" };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}{default}\n    {}", kind.name, kind.doc);
        for param in kind.params {
            let _ = writeln!(text, "    {}", line(param));
        }
    }
    text
}

fn line(param: &Param) -> String {
    let unit = match param.unit {
        "" => String::new(),
        unit => format!(" {unit}"),
    };
    let number = if param.integer {
        "whole number"
    } else {
        "number"
    };
    format!(
        "{} = {}{unit}  {number} from {} to {}: {}",
        param.name, param.default, param.min, param.max, param.doc
    )
}

#[cfg(test)]
mod tests {
    use evenkeel_core::strategy::REGISTRY;

    use super::*;

    #[test]
    fn every_strategy_and_parameter_is_listed() {
        let text = list_strategies(REGISTRY);
        for kind in REGISTRY {
            assert!(
                text.contains(kind.name) && text.contains(kind.doc),
                "{}",
                kind.name
            );
            for param in kind.params {
                assert!(text.contains(&format!("    {} = {}", param.name, param.default)));
            }
        }
        assert_eq!(text.matches("(the default)").count(), 1);
    }
}

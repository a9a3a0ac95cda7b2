//! The work for input is linear in its length, counted in instructions: input costs no more than by the byte, and
//! dripping it byte by byte no more than that again.

#![allow(clippy::unwrap_used)] // A test fails by panicking.

use std::io::Write;
use std::path::Path;

use evenkeel_counts::{Missing, count};

/// Factor by which a longer input may cost more than in proportion to its length: tables grow, and logarithms.
/// Quadratic work would be 4 times as much with each step.
const MORE: f64 = 1.4;

/// Counts the inputs of a case; what they cost must grow no faster than their lengths.
fn is_linear(case: &str) {
    let program = Path::new(env!("CARGO_BIN_EXE_evenkeel-counts"));
    let counted = match count(program, &["--count", case]) {
        Ok(counted) => counted,
        Err(Missing) => {
            assert!(
                !std::env::var("CI").is_ok_and(|ci| ci == "true"),
                "there is no valgrind"
            );
            // Nothing to be done if nobody listens.
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: {case}: there is no valgrind here"
            );
            return;
        }
    };
    let counted: Vec<(f64, f64)> = counted
        .iter()
        .map(|(length, instructions)| (length.parse().unwrap(), *instructions as f64))
        .collect();
    assert!(counted.len() >= 3, "{case}: {counted:?}");
    for two in counted.windows(2) {
        let ((short, cheap), (long, dear)) = (two[0], two[1]);
        let (longer, dearer) = (long / short, dear / cheap);
        assert!(longer >= 1.4, "{case}: {counted:?}");
        assert!(
            dearer <= longer * MORE,
            "{case}: {longer:.2} times the length costs {dearer:.2} times the work: {counted:?}"
        );
    }
}

macro_rules! linear {
    ($($name:ident: $case:literal;)*) => {
        $(#[test]
        fn $name() {
            is_linear($case);
        })*
    };
}

linear! {
    p5_a_registration_costs_by_the_byte: "report";
    p5_a_forged_report_costs_by_the_byte: "report-of-nobody";
    p5_agents_cost_the_same_however_many_there_are: "report-agents";
    p5_an_exposition_costs_by_the_line: "exposition-lines";
    p5_a_line_of_an_exposition_costs_by_the_byte: "exposition-line";
    p5_what_is_no_exposition_costs_by_the_byte: "exposition-nonsense";
    p5_an_orca_report_in_text_costs_by_the_byte: "orca-text";
    p5_an_orca_report_in_json_costs_by_the_byte: "orca-json";
    p5_a_binary_orca_report_costs_by_the_byte: "orca-binary";
    p5_an_agent_check_costs_by_the_byte: "agent-check";
    p5_an_agent_check_that_drips_costs_by_the_byte: "agent-check-drip";
    s8_the_head_of_a_request_that_drips_costs_by_the_byte: "request-head-drip";
    s8_the_head_of_a_response_that_drips_costs_by_the_byte: "response-head-drip";
    p5_a_kernels_answer_costs_by_the_byte: "kernel-answer";
    p5_a_kernels_record_costs_by_the_byte: "kernel-record";
    p5_load_queries_cost_the_same_however_many_ask: "kernel-queries";
    p5_what_is_no_key_costs_by_the_byte: "kernel-key";
    p5_a_configuration_costs_by_the_member: "config-members";
    p5_a_configuration_costs_by_the_rule: "config-rules";
    p5_errors_of_a_configuration_cost_by_the_error: "config-errors";
    p5_what_is_no_configuration_costs_by_the_byte: "config-text";
}

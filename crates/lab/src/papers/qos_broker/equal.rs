//! Three equal servers of 3.5 ms: section 5.1.

use super::real;
use super::unequal::policy_table;
use super::world::{LAS, LU, RAN, RR, Seen, both_loads, map_seed_pairs};
use crate::findings::{Findings, Table};
use crate::machine::Need;
use crate::paper::{Play, Real};
use crate::run::Run;

/// Mean service time of each server, in microseconds.
pub(super) const SERVICE_TIMES: [u64; 3] = [3_500; 3];
pub(super) const USERS: usize = 2700;
/// For a utilisation of 85 %, and for 1,080 requests per second if they could be served.
pub(super) const OFF: f64 = 0.97;
const OFF_PUBLISHED: f64 = 0.62;

pub(super) const EXPERIMENT: Play = Play {
    experiment: "broker-homogeneous",
    simulate: Some(simulate),
    real: Some(Real {
        needs: &[
            Need::Source,
            Need::Program("apxs", "apache2-dev"),
            Need::Quiet(0.2),
        ],
        run: |run| {
            let test = ("equal_servers_need_no_reports", "homogeneous");
            real::repeat(run, test, |rounds| {
                let mut found = Findings::default();
                judge(&mut found, rounds);
                found.tables.push(policy_table(rounds));
                found
            })
        },
    }),
};

fn simulate(run: &Run<'_>) -> Findings {
    let (all, published, most) = both_loads(run, SERVICE_TIMES, USERS, (OFF, OFF_PUBLISHED));
    let mut found = Findings::default();
    judge(&mut found, &all);
    found.add_measured("published-rate", most);
    found.tables.push(policy_table(&all));
    found.tables.push(Table {
        name: "published-load",
        title: "With users who ask for 1,080 requests per second, of which 857 can be served"
            .into(),
        ..policy_table(&published)
    });
    found.notes.push(
        "Whoever looks pays for it here: in a second a server gets about 243 requests, so its utilisation is off by 5 points by chance, \
         while the users that chance gives to it under RR make 2. Following what is measured makes differences that were not there. \
         With a long quantum that is less, because fewer choose between two reports (`broker-las`)."
            .into(),
    );
    found
}

fn judge(found: &mut Findings, all: &[Vec<Seen>]) {
    let [rr, ran, lu, las] =
        [RR, RAN, LU, LAS].map(|policy| all.get(policy).map_or(&[][..], Vec::as_slice));
    let ratio = |one: &Seen, other: &Seen| one.response / other.response;
    found.add_measured("ran-as-rr", map_seed_pairs(ran, rr, ratio));
    found.add_measured("lu-as-rr", map_seed_pairs(lu, rr, ratio));
    found.add_measured("las-as-rr", map_seed_pairs(las, rr, ratio));
    let better = map_seed_pairs(lu, las, |lu, las| lu.response.min(las.response));
    let suffices = rr
        .iter()
        .zip(better)
        .map(|(rr, better)| rr.response / better);
    found.add_measured("static-suffices", suffices.collect());
}

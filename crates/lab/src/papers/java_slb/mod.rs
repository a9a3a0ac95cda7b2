//! Al-qdah and Bin Abu Yan, A Java TCP Server Load Balancer: Analysis and Comparison of its Load Balancing Algorithms.

mod clients;
mod measured;
mod real;
mod simulated;

use crate::claim::{Claim, Rule};
use crate::paper::{By, Experiment, Paper, Real, Row};

/// What is not as in the paper.
const DIFFERS: &str = "The balancer is Evenkeel and not a program in Java: a rule with `protocol = \"tcp\"` for HTTP, and one \
with `protocol = \"ftp\"` for FTP. The strategies are `round_robin`, `source_ip_hash`, `least_connection` and \
`random`. Hash IP is as plain as there (`bound = 0`): by default ours sends a client elsewhere whose server has more than \
its share. The paper does not say how its balancer carries FTP's data connections.

The paper's own data has oddities. In table 1, client 2 takes 126 s with hash IP and 291 to 303 s with the other three, \
while all other clients differ by less than 6 %: with a value like its others the average of hash IP would be about \
215 s in place of 198 s, and round robin would be the first in table 8. Table 8 gives ranks without \
values but for two standard deviations, of memory, without their unit. Its ranks of CPU of the balancer are \
empty. Text and table contradict each other about FTP: by the text random spreads CPU least evenly, by table 8 hash IP \
does. Each algorithm was run once, so there is no spread, and differences of a percent cannot be told from noise. \
The scripts ran \"at thirty minutes interval\", and tests took thirty minutes: it is not said how many crawls or sessions \
an average is of. The curves of figures 4 to 10, and the values of tables 2 and 5, are not in our copy of the \
text: only numbers that the text has are compared.";

/// What is set up.
const SET_UP_HTTP: &str = "Four servers and ten clients, 30 minutes, 20 seeds. The site has 152 MB as published, and \
here 6,000 files (median 9 kB). A crawl fetches each file once, over a connection of its own, as each connection is what \
a TCP rule balances; then the next crawl begins. The client's own time for a file (exponential) is fitted so that crawls \
take as long with round robin as in table 1: that column is put in, the other three are what is asked. A file takes its \
server 0.5 ms of CPU and 10 ms for each MB, and 0.4 ms of network: assumed, as nothing is published but that CPU is \
very low. Clients have other private addresses with each seed, because it depends on them where a hash sends them.

CPU and memory of the balancer, and memory of the servers, cannot be simulated: `slb-machines` has them.";

const SET_UP_FTP: &str = "Four servers and ten clients, 30 minutes, 20 seeds. A session is a control connection, which \
the rule balances, and 400 MB (ten files) over it in pieces of 1/16 MB; then the next session begins. The client's own \
time for a piece (exponential) is fitted so that sessions take as long with round robin as in table 7. With 400 MB all ten \
clients together get what a network of 100 Mbit/s carries, which would be why the ten have about the same time \
in table 7 and not in table 1. A MB takes its server 0.1 s of CPU, 30 % on average: the paper only says that it is \
significant. Clients have other private addresses with each seed.";

const SET_UP_MACHINES: &str = "What needs machines: CPU and memory of the balancer, memory of the servers; and the claims of the \
other two experiments once more, on real programs.";

const SET_UP_REAL: &str = "Four nginx (one worker each) with the site of 152 MB in 6,000 files, then four vsftpd with ten \
files; `evenkeel run` with one rule; ten clients, each at an address of its own. The rate is the paper's: 280 files or 12 MB \
per second for all clients together. Crawls and sessions are a tenth of the paper's (every tenth file; 40 MB), and each algorithm runs for 42 s with each service \
in each of four rounds in place of once for 30 minutes; all programs are started anew each time, and clients have other addresses in \
each round. Files are holes, which read as zeros. A client takes its time after each file, and for each 64 KiB of FTP: as long as published with round \
robin, so that what our machine adds comes on top. CPU is that of the processes (the scheduler's count, each second), and not that of a whole machine, of which all \
are a part here; memory is what they have in use (each its share of what several have in common), where the paper has the free memory of machines \
with their file caches.";

/// Files of the site, which together have 152 MB.
const SITE_FILES: usize = 6_000;
const SITE_BYTES: f64 = 152e6;

/// Files of an FTP session, and how many MB they have together.
const FTP_FILES: usize = 10;
const FTP_MEGABYTES: usize = 400;

/// Sizes of the files of a site of 152 MB, most of them small (Pareto, 1.2, cut at 13 MB), in an order by chance
/// that is always the same.
fn site(files: usize) -> Vec<u64> {
    let size = |index: usize| {
        let share = (index as f64 + 0.5) / files as f64;
        libm::pow(1.0 - share, -1.0 / 1.2)
    };
    let mut sizes: Vec<f64> = (0..files).map(size).collect();
    let all: f64 = sizes.iter().sum();
    sizes.iter_mut().for_each(|size| *size *= SITE_BYTES / all);
    fastrand::Rng::with_seed(1).shuffle(&mut sizes);
    sizes.into_iter().map(|size| size as u64).collect()
}

const HTTP_CLOSE: Claim = Claim {
    id: "http-close",
    says: "HTTP: the algorithms' response times are close to each other",
    published: "198 to 221 s (table 1): 4.0 % apart without the average of HIP, which has an odd value",
    measured: "largest to smallest average of an algorithm",
    unit: "%",
    rule: Rule::AtMost(4.0),
};

const HTTP_RANK: Claim = Claim {
    id: "http-rank",
    says: "HTTP: clients wait longest with random, and least with hash IP",
    published: "221 and 198 s (table 1), 4th and 1st (table 8)",
    measured: "average with random above that with hash IP",
    unit: "s",
    rule: Rule::AtLeast(0.0),
};

const HTTP_EVEN_RANK: Claim = Claim {
    id: "http-even-rank",
    says: "HTTP: the servers' CPU is more even with least connection than with round robin",
    published: "1st and 4th (table 8)",
    measured: "standard deviation between servers with round robin above that with least connection",
    unit: "% of a CPU",
    rule: Rule::AtLeast(0.0),
};

const ROUND_ROBIN_EQUAL: Claim = Claim {
    id: "round-robin-equal",
    says: "With round robin each server gets an equal number of connections",
    published: "said of the algorithm (materials and methods)",
    measured: "most to fewest connections of a server",
    unit: "% of all",
    rule: Rule::AtMost(0.1),
};

const FTP_CLOSE: Claim = Claim {
    id: "ftp-close",
    says: "FTP: the algorithms' response times are quite close to each other",
    published: "329 to 334 s (table 7): 1.7 % apart",
    measured: "largest to smallest average of an algorithm",
    unit: "%",
    rule: Rule::AtMost(1.7),
};

const FTP_RANK: Claim = Claim {
    id: "ftp-rank",
    says: "FTP: clients wait longer with random than with least connection",
    published: "334 and 329 s (table 7), 4th and 1st (table 8)",
    measured: "average with random above that with least connection",
    unit: "s",
    rule: Rule::AtLeast(0.0),
};

const FTP_LEAST_EVENEST: Claim = Claim {
    id: "ftp-least-evenest",
    says: "FTP: least connection spreads the servers' CPU most evenly",
    published: "the closest lines (text), 1st (table 8)",
    measured: "standard deviation between servers: the least of the other three's above its own",
    unit: "% of a CPU",
    rule: Rule::AtLeast(0.0),
};

const FTP_RANDOM_LAST: Claim = Claim {
    id: "ftp-random-last",
    says: "FTP: random spreads the servers' CPU least evenly",
    published: "said in the text; table 8 has it 3rd",
    measured: "standard deviation between servers: its own above the largest of the other three's",
    unit: "% of a CPU",
    rule: Rule::AtLeast(0.0),
};

const FTP_HASH_LAST: Claim = Claim {
    id: "ftp-hash-last",
    says: "FTP: hash IP spreads the servers' CPU least evenly",
    published: "4th (table 8), against the text",
    measured: "standard deviation between servers: its own above the largest of the other three's",
    unit: "% of a CPU",
    rule: Rule::AtLeast(0.0),
};

const FTP_HASH_STEADIEST: Claim = Claim {
    id: "ftp-hash-steadiest",
    says: "FTP: with hash IP the CPU of a server fluctuates least",
    published: "said in the text",
    measured: "standard deviation over time: the least of the other three's above its own",
    unit: "% of a CPU",
    rule: Rule::AtLeast(0.0),
};

const FTP_RANDOM_FLUCTUATES: Claim = Claim {
    id: "ftp-random-fluctuates",
    says: "FTP: with random the CPU of a server fluctuates most",
    published: "said in the text",
    measured: "standard deviation over time: its own above the largest of the other three's",
    unit: "% of a CPU",
    rule: Rule::AtLeast(0.0),
};

const BALANCER_HTTP_CPU: Claim = Claim {
    id: "balancer-http-cpu",
    says: "HTTP: the balancer needs less than 10 % of the CPU on average with any algorithm",
    published: "< 10 % (text to figure 4)",
    measured: "mean CPU of the balancer with the algorithm that needs most",
    unit: "% of a CPU",
    rule: Rule::AtMost(10.0),
};

const BALANCER_FTP_CPU: Claim = Claim {
    id: "balancer-ftp-cpu",
    says: "FTP: the balancer needs more than 30 % of the CPU on average with any algorithm",
    published: "> 30 % (text to table 7)",
    measured: "mean CPU of the balancer with the algorithm that needs least",
    unit: "% of a CPU",
    rule: Rule::AtLeast(30.0),
};

const BALANCER_FTP_MORE: Claim = Claim {
    id: "balancer-ftp-more",
    says: "The balancer needs more CPU for FTP than for HTTP",
    published: "> 30 % and < 10 % (texts to table 7 and figure 4)",
    measured: "mean CPU with FTP above that with HTTP, over all algorithms",
    unit: "% of a CPU",
    rule: Rule::AtLeast(0.0),
};

const SERVERS_HTTP_CPU: Claim = Claim {
    id: "servers-http-cpu",
    says: "HTTP: the CPU usage of the servers is very low",
    published: "said in the text to figure 6; 10 % is what the paper calls very light elsewhere",
    measured: "mean CPU of a server with the algorithm that needs most",
    unit: "% of a CPU",
    rule: Rule::AtMost(10.0),
};

const BALANCER_MEMORY_GROWS: Claim = Claim {
    id: "balancer-memory-grows",
    says: "HTTP: the balancer's memory gets larger as the test progresses",
    published: "figure 5 and its text",
    measured: "mean memory of the second half above that of the first, over all algorithms",
    unit: "kB",
    rule: Rule::AtLeast(0.0),
};

const BALANCER_HTTP_MEMORY_RANK: Claim = Claim {
    id: "balancer-http-memory-rank",
    says: "HTTP: the balancer's memory grows least with round robin",
    published: "table 2 by its text, 1st (table 8)",
    measured: "growth: the least of the other three's above its own",
    unit: "kB",
    rule: Rule::AtLeast(0.0),
};

const BALANCER_FTP_MEMORY_RANK: Claim = Claim {
    id: "balancer-ftp-memory-rank",
    says: "FTP: the balancer's memory grows least with least connection",
    published: "said in the text, 1st (table 8)",
    measured: "growth: the least of the other three's above its own",
    unit: "kB",
    rule: Rule::AtLeast(0.0),
};

const SERVERS_MEMORY_GROWS: Claim = Claim {
    id: "servers-memory-grows",
    says: "HTTP: the servers' memory gets larger as the test progresses, with any algorithm",
    published: "figures 7 to 10 (free memory falls) and their text",
    measured: "mean memory of a server in the second half above that in the first, over all algorithms",
    unit: "kB",
    rule: Rule::AtLeast(0.0),
};

const fn row(what: &'static str, shows: &'static str, experiment: &'static str) -> Row {
    Row {
        what,
        shows,
        by: By::Experiment(experiment),
    }
}

/// The paper.
pub static PAPER: Paper = Paper {
    name: "java-slb",
    title: "A TCP server load balancer and its algorithms",
    cite: "Al-qdah and Bin Abu Yan, *A Java TCP Server Load Balancer: Analysis and Comparison of its Load Balancing Algorithms*",
    differs: DIFFERS,
    rows: &[
        row(
            "table 1",
            "HTTP: response time of each client with each algorithm",
            "slb-http",
        ),
        row(
            "figure 4",
            "HTTP: CPU of the balancer over 30 minutes",
            "slb-machines",
        ),
        row(
            "figure 5",
            "HTTP: memory of the balancer over 30 minutes",
            "slb-machines",
        ),
        row(
            "table 2",
            "HTTP: largest memory of the balancer",
            "slb-machines",
        ),
        row(
            "figure 6",
            "HTTP: CPU of the servers over 30 minutes",
            "slb-http",
        ),
        row(
            "figure 7",
            "HTTP: memory of the servers with round robin",
            "slb-machines",
        ),
        row(
            "table 3",
            "HTTP: largest memory of the servers with round robin",
            "slb-machines",
        ),
        row(
            "figure 8",
            "HTTP: memory of the servers with hash IP",
            "slb-machines",
        ),
        row(
            "table 4",
            "HTTP: largest memory of the servers with hash IP",
            "slb-machines",
        ),
        row(
            "figure 9",
            "HTTP: memory of the servers with least connection",
            "slb-machines",
        ),
        row(
            "table 5",
            "HTTP: largest memory of the servers with least connection",
            "slb-machines",
        ),
        row(
            "figure 10",
            "HTTP: memory of the servers with random",
            "slb-machines",
        ),
        row(
            "table 6",
            "HTTP: largest memory of the servers with random",
            "slb-machines",
        ),
        row(
            "table 7",
            "FTP: response time of each client with each algorithm",
            "slb-ftp",
        ),
        row(
            "table 8, HTTP",
            "ranks by response time and CPU of the servers",
            "slb-http",
        ),
        row(
            "table 8, FTP",
            "ranks by response time and CPU of the servers",
            "slb-ftp",
        ),
        row(
            "table 8, memory",
            "ranks by memory of balancer and servers",
            "slb-machines",
        ),
    ],
    experiments: &[
        Experiment {
            name: "slb-http",
            title: "Crawls of a web site with four algorithms: response times, CPU of the servers",
            set_up: SET_UP_HTTP,
            claims: &[HTTP_CLOSE, HTTP_RANK, HTTP_EVEN_RANK, ROUND_ROBIN_EQUAL],
            simulate: Some(simulated::http),
            real: None,
        },
        Experiment {
            name: "slb-ftp",
            title: "FTP sessions with four algorithms: response times, CPU of the servers",
            set_up: SET_UP_FTP,
            claims: &[
                FTP_CLOSE,
                FTP_RANK,
                FTP_LEAST_EVENEST,
                FTP_RANDOM_LAST,
                FTP_HASH_LAST,
                FTP_HASH_STEADIEST,
                FTP_RANDOM_FLUCTUATES,
            ],
            simulate: Some(simulated::ftp),
            real: None,
        },
        Experiment {
            name: "slb-machines",
            title: "Both services with real programs: response times, CPU and memory of balancer and servers",
            set_up: SET_UP_MACHINES,
            claims: &[
                BALANCER_HTTP_CPU,
                BALANCER_FTP_CPU,
                BALANCER_FTP_MORE,
                BALANCER_MEMORY_GROWS,
                BALANCER_HTTP_MEMORY_RANK,
                BALANCER_FTP_MEMORY_RANK,
                SERVERS_HTTP_CPU,
                SERVERS_MEMORY_GROWS,
                HTTP_CLOSE,
                HTTP_RANK,
                HTTP_EVEN_RANK,
                FTP_CLOSE,
                FTP_RANK,
                FTP_LEAST_EVENEST,
                FTP_RANDOM_LAST,
                FTP_HASH_LAST,
                FTP_HASH_STEADIEST,
                FTP_RANDOM_FLUCTUATES,
            ],
            simulate: None,
            real: Some(Real {
                set_up: SET_UP_REAL,
                needs: real::NEEDS,
                run: real::run,
            }),
        },
    ],
};

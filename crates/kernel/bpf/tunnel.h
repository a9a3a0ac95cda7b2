/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Headers of the tunnel between balancers and members (`return_path = "tunnel"`): GUE in UDP, version 0
 * (draft-ietf-intarea-gue). With rows the header has private data: the other members that may have the connection.
 * src/tunnel.rs has the lengths, too. */
#pragma once

#define TUNNEL_PORT 6080

/* Other members in a header, at most. */
#define OTHERS 2

/* Type of the private data. */
#define OF_ROW 1

struct gue {
	__u8 words;    /* of four bytes behind this header; above them version 0, and no control message */
	__u8 protocol; /* of the packet behind */
	__u16 flags;
};

struct others {
	__u8 type;
	__u8 next; /* number of the first one that has not had the packet */
	__u8 count;
	__u8 zero;
};

struct udp_header {
	__u16 source, dest, length, check;
};

#define OTHERS_WORDS 3	/* with two addresses of IPv4 */
#define OTHERS_WORDS6 9 /* with two addresses of IPv6 */

/* Bytes of UDP and GUE, without and with other members. */
#define PLAIN 12
#define ROW4 (PLAIN + 4 * OTHERS_WORDS)
#define ROW6 (PLAIN + 4 * OTHERS_WORDS6)

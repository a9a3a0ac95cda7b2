// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* Makes packets at the driver, and counts and drops them: for measurements. src/traffic.rs has the same structures. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define FRAMES 64 /* different frames, one after the other */
#define LENGTH 64

struct evk_frame {
	__u8 bytes[LENGTH];
};

struct evk_traffic {
	__u64 made;
	__u64 arrived;
	__u32 interface; /* where frames are sent */
	__u32 zero;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FRAMES);
	__type(key, __u32);
	__type(value, struct evk_frame);
} evk_frames SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct evk_traffic);
} evk_traffic SEC(".maps");

/* Sends the next frame. Memory of frames is used again with what has become of the last one, so all is written. */
SEC("xdp")
int evk_make(struct xdp_md *xdp)
{
	void *data = (void *)(long)xdp->data, *end = (void *)(long)xdp->data_end;
	__u32 zero = 0;
	struct evk_traffic *traffic = bpf_map_lookup_elem(&evk_traffic, &zero);
	if (!traffic || data + LENGTH > end)
		return XDP_ABORTED;
	__u32 number = traffic->made++ % FRAMES;
	struct evk_frame *frame = bpf_map_lookup_elem(&evk_frames, &number);
	if (!frame)
		return XDP_ABORTED;
	__builtin_memcpy(data, frame->bytes, LENGTH);
	return bpf_redirect(traffic->interface, 0);
}

/* Drops all packets of IPv4. Others pass: neighbours are found by them, and lost without them after half a minute. */
SEC("xdp")
int evk_sink(struct xdp_md *xdp)
{
	struct ethhdr *frame = (void *)(long)xdp->data;
	__u32 zero = 0;
	if ((void *)(frame + 1) > (void *)(long)xdp->data_end || frame->h_proto != bpf_htons(ETH_P_IP))
		return XDP_PASS;
	struct evk_traffic *traffic = bpf_map_lookup_elem(&evk_traffic, &zero);
	if (traffic)
		traffic->arrived++;
	return XDP_DROP;
}

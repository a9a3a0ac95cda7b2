/* Words of a packet that change on the way, and what becomes of the checksums: differences are added up, and written once. */

/* Parts of a packet that the checksum of TCP covers and that may change here. */
struct evk_words {
	struct evk_ip from, to;
	__be16 ports[2];
	__be32 timestamps[2];
};

/* More than the sum of all words of a packet that may change, and nothing in a checksum. */
#define NOTHING (16 * 0xffffffffULL)

/* Folds a sum of words into 32 bits. */
static __always_inline __u32 fold32(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	return (sum & 0xffffffff) + (sum >> 32);
}

/* Folds a sum of words into the 16 bits of a checksum. */
static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* Returns the sum of the words of an address. */
static __always_inline __u64 sum_ip(const struct evk_ip *ip, int is6)
{
	__u64 sum = ip->word[3];
	return is6 ? sum + ip->word[0] + ip->word[1] + ip->word[2] : sum;
}

/* Returns the sum of all words that may change. */
static __always_inline __u64 sum_words(const struct evk_words *words, int is6)
{
	__u32 ports;
	__builtin_memcpy(&ports, words->ports, sizeof(ports));
	return sum_ip(&words->from, is6) + sum_ip(&words->to, is6) + ports + words->timestamps[0] +
	       words->timestamps[1];
}

/* Returns the checksum after a change (RFC 1624) of sums that have at most eleven words of 32 bits. */
static __always_inline __u16 change_check(__u16 check, __u64 old, __u64 next)
{
	return ~fold((__u16)~check + NOTHING - old + next);
}

/* Writes addresses into the header of IPv4 and lowers the lifetime; a wrong checksum stays wrong. Returns the difference
 * of the sums of the addresses. */
static __always_inline __u32 write_addresses4(struct iphdr *ip, const struct evk_ip *from, const struct evk_ip *to)
{
	__u64 old = (__u64)ip->saddr + ip->daddr, next = (__u64)from->word[3] + to->word[3];
	/* The lifetime and the protocol share a word of the checksum. */
	__u64 was = old + bpf_htons(ip->ttl << 8 | ip->protocol);
	ip->ttl -= 1;
	__u64 is = next + bpf_htons(ip->ttl << 8 | ip->protocol);
	ip->check = change_check(ip->check, was, is);
	ip->saddr = from->word[3];
	ip->daddr = to->word[3];
	return fold32(NOTHING - old + next);
}

/* Writes addresses into the header of IPv6 and lowers the lifetime. Returns the difference of the sums of the addresses. */
static __always_inline __u32 write_addresses6(struct ipv6hdr *ip, const struct evk_ip *from, const struct evk_ip *to)
{
	struct evk_ip old_from, old_to;
	copy_ipv6(&old_from, &ip->saddr);
	copy_ipv6(&old_to, &ip->daddr);
	ip->hop_limit -= 1;
	__builtin_memcpy(&ip->saddr, from, sizeof(ip->saddr));
	__builtin_memcpy(&ip->daddr, to, sizeof(ip->daddr));
	return fold32(NOTHING - sum_ip(&old_from, 1) - sum_ip(&old_to, 1) + sum_ip(from, 1) + sum_ip(to, 1));
}

/* Corrects the sum that an interface has taken of a whole packet of IPv6, if one has: the header has no checksum that
 * balances the lifetime, and the checksum of the payload was changed for the addresses. */
static __always_inline void correct_sum6(struct __sk_buff *skb, __u32 addresses)
{
	/* One less in the second byte of a word. */
	bpf_csum_update(skb, fold32(NOTHING + addresses - bpf_htons(1)));
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What runs on a GPU: checksums of its memory, and copies within it that are
 * many and small, or of elements that lie apart.
 *
 * OpenCL C and C at once. tools/kernels makes kernels.ptx of it, which every
 * driver since CUDA 9 compiles for the GPU that it has; tests, and the
 * simulated driver, take the same text as C, thread by thread. Threads say
 * nothing to each other: whatever one needs of another is the next kernel's.
 *
 * Addresses of what is worked on are numbers, as the driver has them.
 */
#ifdef __OPENCL_C_VERSION__
#define SK_GLOBAL __global
#define SK_TABLE __constant
#define SK_UNROLL _Pragma("unroll")
#define SK_NO_UNROLL _Pragma("nounroll")
#else
#define SK_GLOBAL
#define SK_TABLE static const
#define SK_UNROLL
#define SK_NO_UNROLL
#endif

typedef unsigned char sk_u8;
typedef unsigned short __attribute__((may_alias)) sk_half;
typedef unsigned int sk_u32;
typedef sk_u32 __attribute__((may_alias)) sk_quad;
typedef unsigned long sk_u64;
/* Memory has whatever types its owner gave it. */
typedef sk_u64 __attribute__((may_alias)) sk_word;
typedef SK_GLOBAL const sk_u8 *sk_bytes;

/** Bytes of memory whose checksum is wanted: XXH3-64 of all of them. */
struct sk_kernel_span {
	sk_u64 at;
	sk_u64 bytes;
};

/** A copy; the two do not overlap. It is made in slices, side by side. */
#define SK_SLICE 0x10000ul

struct sk_kernel_copy {
	sk_u64 dst;
	sk_u64 src;
	sk_u64 bytes;
};

#define SK_BOX_DIMS 8u
/** The first two dimensions are cut into tiles of so many each way. */
#define SK_TILE 32u

/** Elements of @run bytes, in @size[0] by @size[1] by ...: those beyond what
 * there are dimensions are 1. Strides are bytes, and may be negative. The two
 * sides do not overlap. */
struct sk_kernel_box {
	sk_u64 dst;
	sk_u64 src;
	sk_u64 run;
	sk_u64 size[SK_BOX_DIMS];
	sk_u64 dst_stride[SK_BOX_DIMS];
	sk_u64 src_stride[SK_BOX_DIMS];
};

/* ---- XXH3-64, seed 0, as its specification has it ---- */

#define SK_P32_1 0x9E3779B1ul
#define SK_P32_2 0x85EBCA77ul
#define SK_P32_3 0xC2B2AE3Dul
#define SK_P64_1 0x9E3779B185EBCA87ul
#define SK_P64_2 0xC2B2AE3D27D4EB4Ful
#define SK_P64_3 0x165667B19E3779F9ul
#define SK_P64_4 0x85EBCA77C2B2AE63ul
#define SK_P64_5 0x27D4EB2F165667C5ul
#define SK_P_MIX 0x165667919E3779F9ul
#define SK_P_MUL 0x9FB21C651E98DF25ul

/* Up to so many bytes, the sum is another function of them. */
#define SK_SHORT 240u
#define SK_STRIPE 64u
#define SK_STRIPES 16u
#define SK_BLOCK (SK_STRIPE * SK_STRIPES)
#define SK_LANES 8u

/* The default secret, 192 bytes. */
SK_TABLE sk_u64 sk_secret[24] = {
	0xbe4ba423396cfeb8ul, 0x1cad21f72c81017cul, 0xdb979083e96dd4deul,
	0x1f67b3b7a4a44072ul, 0x78e5c0cc4ee679cbul, 0x2172ffcc7dd05a82ul,
	0x8e2443f7744608b8ul, 0x4c263a81e69035e0ul, 0xcb00c391bb52283cul,
	0xa32e531b8b65d088ul, 0x4ef90da297486471ul, 0xd8acdea946ef1938ul,
	0x3f349ce33f76faa8ul, 0x1d4f0bc7c7bbdcf9ul, 0x3159b4cd4be0518aul,
	0x647378d9c97e9fc8ul, 0xc3ebd33483acc5eaul, 0xeb6313faffa081c5ul,
	0x49daf0b751dd0d17ul, 0x9e68d429265516d3ul, 0xfca1477d58be162bul,
	0xce31d07ad1b8f88ful, 0x280416958f3acb45ul, 0x7e404bbbcafbd7aful,
};

SK_TABLE sk_u64 sk_start[SK_LANES] = {
	SK_P32_3, SK_P64_1, SK_P64_2, SK_P64_3,
	SK_P64_4, SK_P32_2, SK_P64_5, SK_P32_1,
};

/* Eight bytes of the secret, from any one on. */
static sk_u64 sk_secret_at(sk_u32 byte)
{
	sk_u32 word = byte / 8, bits = byte % 8 * 8;

	if (!bits)
		return sk_secret[word];
	return sk_secret[word] >> bits | sk_secret[word + 1] << (64 - bits);
}

/* Eight bytes of memory, at any address. */
static sk_u64 sk_load(sk_bytes p)
{
	sk_u64 value = 0;

	if (!((sk_u64)p % 8))
		return *(SK_GLOBAL const sk_word *)p;
	for (int i = 7; i >= 0; i--)
		value = value << 8 | p[i];
	return value;
}

static sk_u64 sk_load32(sk_bytes p)
{
	return p[0] | (sk_u64)p[1] << 8 | (sk_u64)p[2] << 16 |
	       (sk_u64)p[3] << 24;
}

/* The low half of the product, and the high one, in one. */
static sk_u64 sk_fold(sk_u64 a, sk_u64 b)
{
	sk_u64 al = a & 0xffffffff, ah = a >> 32;
	sk_u64 bl = b & 0xffffffff, bh = b >> 32;
	sk_u64 low = al * bl, one = ah * bl, other = al * bh;
	sk_u64 middle = (low >> 32) + (one & 0xffffffff) + other;
	sk_u64 high = ah * bh + (one >> 32) + (middle >> 32);

	return a * b ^ high;
}

static sk_u64 sk_avalanche(sk_u64 h)
{
	h = (h ^ h >> 37) * SK_P_MIX;
	return h ^ h >> 32;
}

static sk_u64 sk_avalanche_short(sk_u64 h)
{
	h = (h ^ h >> 33) * SK_P64_2;
	h = (h ^ h >> 29) * SK_P64_3;
	return h ^ h >> 32;
}

static sk_u64 sk_rotate(sk_u64 h, sk_u32 bits)
{
	return h << bits | h >> (64 - bits);
}

static sk_u64 sk_swap(sk_u64 h)
{
	h = (h & 0x00ff00ff00ff00fful) << 8 | (h >> 8 & 0x00ff00ff00ff00fful);
	h = (h & 0x0000ffff0000fffful) << 16 |
	    (h >> 16 & 0x0000ffff0000fffful);
	return h << 32 | h >> 32;
}

/* Of 1 to 3 bytes. */
static sk_u64 sk_sum_3(sk_bytes p, sk_u64 n)
{
	sk_u64 all = (sk_u64)p[0] << 16 | (sk_u64)p[n / 2] << 24 | p[n - 1] |
		     n << 8;

	return sk_avalanche_short(all ^ ((sk_secret[0] & 0xffffffff) ^
					 sk_secret[0] >> 32));
}

/* Of 4 to 8. */
static sk_u64 sk_sum_8(sk_bytes p, sk_u64 n)
{
	sk_u64 h = sk_load32(p + n - 4) + (sk_load32(p) << 32);

	h ^= sk_secret[1] ^ sk_secret[2];
	h ^= sk_rotate(h, 49) ^ sk_rotate(h, 24);
	h *= SK_P_MUL;
	h ^= (h >> 35) + n;
	h *= SK_P_MUL;
	return h ^ h >> 28;
}

/* Of 9 to 16. */
static sk_u64 sk_sum_16(sk_bytes p, sk_u64 n)
{
	sk_u64 low = sk_load(p) ^ sk_secret[3] ^ sk_secret[4];
	sk_u64 high = sk_load(p + n - 8) ^ sk_secret[5] ^ sk_secret[6];

	return sk_avalanche(n + sk_swap(low) + high + sk_fold(low, high));
}

static sk_u64 sk_mix(sk_bytes p, sk_u32 secret)
{
	return sk_fold(sk_load(p) ^ sk_secret_at(secret),
		       sk_load(p + 8) ^ sk_secret_at(secret + 8));
}

/* Of 17 to 128: from both ends inwards. */
static sk_u64 sk_sum_128(sk_bytes p, sk_u64 n)
{
	sk_u32 pairs = (sk_u32)(n - 1) / 32 + 1;
	sk_u64 h = n * SK_P64_1;

	SK_NO_UNROLL
	for (sk_u32 i = 0; i < pairs; i++)
		h += sk_mix(p + 16 * i, 32 * i) +
		     sk_mix(p + n - 16 * (i + 1), 32 * i + 16);
	return sk_avalanche(h);
}

/* Of 129 to 240. */
static sk_u64 sk_sum_240(sk_bytes p, sk_u64 n)
{
	sk_u32 rounds = (sk_u32)n / 16;
	sk_u64 h = n * SK_P64_1;

	SK_NO_UNROLL
	for (sk_u32 i = 0; i < 8; i++)
		h += sk_mix(p + 16 * i, 16 * i);
	h = sk_avalanche(h);
	SK_NO_UNROLL
	for (sk_u32 i = 8; i < rounds; i++)
		h += sk_mix(p + 16 * i, 16 * (i - 8) + 3);
	return sk_avalanche(h + sk_mix(p + n - 16, 119));
}

static sk_u64 sk_sum_short(sk_bytes p, sk_u64 n)
{
	if (n > 128)
		return sk_sum_240(p, n);
	if (n > 16)
		return sk_sum_128(p, n);
	if (n > 8)
		return sk_sum_16(p, n);
	if (n > 3)
		return sk_sum_8(p, n);
	return n ? sk_sum_3(p, n) :
		   sk_avalanche_short(sk_secret[7] ^ sk_secret[8]);
}

/* What a stripe adds to one of the eight sums of a long one: of the two words
 * of it that concern that sum. */
static sk_u64 sk_stripe(sk_u64 mine, sk_u64 neighbour, sk_u64 key)
{
	mine ^= key;
	return neighbour + (mine & 0xffffffff) * (mine >> 32);
}

static sk_u64 sk_stripe_at(sk_bytes p, sk_u32 lane, sk_u64 key)
{
	return sk_stripe(sk_load(p + 8 * lane), sk_load(p + 8 * (lane ^ 1u)),
			 key);
}

static sk_u64 sk_scramble(sk_u64 sum, sk_u32 lane)
{
	return (sum ^ sum >> 47 ^ sk_secret[16 + lane]) * SK_P32_1;
}

/*
 * Whole blocks of a sum, one after the other. Eight threads side by side read
 * the same 64 bytes, and the sixteen stripes of a block wait for memory at
 * once; from one block to the next, a thread has its sum alone to carry.
 */
static sk_u64 sk_blocks(SK_GLOBAL const sk_word *p, sk_u64 n, sk_u64 sum,
			sk_u32 lane)
{
	sk_u64 keys[SK_STRIPES];

	SK_UNROLL
	for (sk_u32 s = 0; s < SK_STRIPES; s++)
		keys[s] = sk_secret[s + lane];
	for (; n; n--, p += SK_BLOCK / 8) {
		SK_UNROLL
		for (sk_u32 s = 0; s < SK_STRIPES; s++)
			sum += sk_stripe(p[8 * s + lane],
					 p[8 * s + (lane ^ 1u)], keys[s]);
		sum = sk_scramble(sum, lane);
	}
	return sum;
}

/* The same at any address, eight times slower. */
static sk_u64 sk_blocks_any(sk_bytes p, sk_u64 n, sk_u64 sum, sk_u32 lane)
{
	for (; n; n--) {
		SK_NO_UNROLL
		for (sk_u32 s = 0; s < SK_STRIPES; s++, p += SK_STRIPE)
			sum += sk_stripe_at(p, lane, sk_secret[s + lane]);
		sum = sk_scramble(sum, lane);
	}
	return sum;
}

/*
 * What one block adds to a pair of the sums does not depend on the blocks
 * before it; so threads take blocks side by side, as wide as the device is,
 * and only what is left is one after the other.
 */
static void sk_block_part(sk_bytes at, sk_u32 lane, SK_GLOBAL sk_u64 *part)
{
	sk_u64 a = 0, b = 0;

	if ((sk_u64)at % 8) {
		SK_NO_UNROLL
		for (sk_u32 s = 0; s < SK_STRIPES; s++, at += SK_STRIPE) {
			a += sk_stripe_at(at, lane, sk_secret[s + lane]);
			b += sk_stripe_at(at, lane + 1,
					  sk_secret[s + lane + 1]);
		}
	} else {
		SK_GLOBAL const sk_word *p = (SK_GLOBAL const sk_word *)at;

		SK_UNROLL
		for (sk_u32 s = 0; s < SK_STRIPES; s++) {
			sk_u64 one = p[8 * s + lane];
			sk_u64 other = p[8 * s + lane + 1];

			a += sk_stripe(one, other, sk_secret[s + lane]);
			b += sk_stripe(other, one, sk_secret[s + lane + 1]);
		}
	}
	part[lane] = a;
	part[lane + 1] = b;
}

/* From one block's parts to the next, as many of which are on their way from
 * memory at once. */
#define SK_AHEAD 32u

static sk_u64 sk_chain(SK_GLOBAL const sk_u64 *part, sk_u64 n, sk_u64 sum,
		       sk_u32 lane)
{
	part += lane;
	for (; n >= SK_AHEAD; n -= SK_AHEAD, part += SK_AHEAD * SK_LANES) {
		sk_u64 ahead[SK_AHEAD];

		SK_UNROLL
		for (sk_u32 i = 0; i < SK_AHEAD; i++)
			ahead[i] = part[i * SK_LANES];
		SK_UNROLL
		for (sk_u32 i = 0; i < SK_AHEAD; i++)
			sum = sk_scramble(sum + ahead[i], lane);
	}
	SK_NO_UNROLL
	for (; n; n--, part += SK_LANES)
		sum = sk_scramble(sum + *part, lane);
	return sum;
}

static sk_u64 sk_blocks_of(sk_u64 n)
{
	return (n - 1) / SK_BLOCK;
}

/* Behind the last whole block. */
static sk_u64 sk_sum_end(sk_bytes p, sk_u64 n, sk_u64 sum, sk_u32 lane)
{
	sk_u32 left = (sk_u32)((n - 1) % SK_BLOCK / SK_STRIPE);
	sk_bytes last = p + n - SK_STRIPE;

	p += sk_blocks_of(n) * SK_BLOCK;
	SK_NO_UNROLL
	for (sk_u32 s = 0; s < left; s++, p += SK_STRIPE)
		sum += sk_stripe_at(p, lane, sk_secret[s + lane]);
	return sum + sk_stripe_at(last, lane, sk_secret_at(121 + 8 * lane));
}

/* One of the eight sums of more than SK_SHORT bytes; @part: what its blocks
 * add, or NULL. */
static sk_u64 sk_sum_lane(sk_bytes p, sk_u64 n, sk_u32 lane,
			  SK_GLOBAL const sk_u64 *part)
{
	sk_u64 blocks = sk_blocks_of(n), sum = sk_start[lane];

	if (part)
		sum = sk_chain(part, blocks, sum, lane);
	else if ((sk_u64)p % 8)
		sum = sk_blocks_any(p, blocks, sum, lane);
	else
		sum = sk_blocks((SK_GLOBAL const sk_word *)p, blocks, sum,
				lane);
	return sk_sum_end(p, n, sum, lane);
}

/* The eight, in one. */
static sk_u64 sk_sum_merge(SK_GLOBAL const sk_u64 *sums, sk_u64 n)
{
	sk_u64 h = n * SK_P64_1;

	SK_NO_UNROLL
	for (sk_u32 i = 0; i < 4; i++)
		h += sk_fold(sums[2 * i] ^ sk_secret_at(11 + 16 * i),
			     sums[2 * i + 1] ^ sk_secret_at(19 + 16 * i));
	return sk_avalanche(h);
}

/* ---- the kernels, as one thread of them ---- */

/* Of n times @most times half of SK_LANES: @parts has @most times SK_LANES for
 * each span, of which none has more blocks than @most. Fewer threads than there
 * are numbers of 32 bits. */
static void sk_kernel_parts(sk_u64 thread,
			    SK_GLOBAL const struct sk_kernel_span *spans,
			    sk_u64 n, SK_GLOBAL sk_u64 *parts, sk_u64 most)
{
	sk_u32 each = (sk_u32)most * (SK_LANES / 2);
	sk_u32 i = (sk_u32)thread / each, at = (sk_u32)thread % each;
	sk_u32 block = at / (SK_LANES / 2), pair = at % (SK_LANES / 2);

	if (i >= n || spans[i].bytes <= SK_SHORT ||
	    block >= sk_blocks_of(spans[i].bytes))
		return;
	sk_block_part((sk_bytes)spans[i].at + (sk_u64)block * SK_BLOCK,
		      2 * pair, parts + (i * most + block) * SK_LANES);
}

/* Of n times SK_LANES, after all of those: @sums has as many. @most of 0: there
 * are no @parts. */
static void sk_kernel_lanes(sk_u64 thread,
			    SK_GLOBAL const struct sk_kernel_span *spans,
			    sk_u64 n, SK_GLOBAL sk_u64 *sums,
			    SK_GLOBAL const sk_u64 *parts, sk_u64 most)
{
	sk_u64 i = thread / SK_LANES;

	if (i >= n || spans[i].bytes <= SK_SHORT)
		return;
	sums[thread] = sk_sum_lane((sk_bytes)spans[i].at, spans[i].bytes,
				   (sk_u32)(thread % SK_LANES),
				   most ? parts + i * most * SK_LANES : 0);
}

/* Of n, after all of those: @ret has as many. */
static void sk_kernel_merge(sk_u64 thread,
			    SK_GLOBAL const struct sk_kernel_span *spans,
			    sk_u64 n, SK_GLOBAL const sk_u64 *sums,
			    SK_GLOBAL sk_u64 *ret)
{
	sk_u64 bytes;

	if (thread >= n)
		return;
	bytes = spans[thread].bytes;
	ret[thread] = bytes <= SK_SHORT ?
		      sk_sum_short((sk_bytes)spans[thread].at, bytes) :
		      sk_sum_merge(sums + thread * SK_LANES, bytes);
}

/* Words [i, ...) of those that one thread in @threads copies: four are on their
 * way at once. */
static void sk_copy_words(SK_GLOBAL sk_word *dst, SK_GLOBAL const sk_word *src,
			  sk_u64 i, sk_u64 words, sk_u64 threads)
{
	for (; i + 3 * threads < words; i += 4 * threads) {
		sk_u64 a = src[i], b = src[i + threads];
		sk_u64 c = src[i + 2 * threads], d = src[i + 3 * threads];

		dst[i] = a;
		dst[i + threads] = b;
		dst[i + 2 * threads] = c;
		dst[i + 3 * threads] = d;
	}
	for (; i < words; i += threads)
		dst[i] = src[i];
}

/* Of @threads that make one slice of a copy, if it has that. */
static void sk_kernel_copies(sk_u64 thread, sk_u64 threads, sk_u64 slice,
			     SK_GLOBAL const struct sk_kernel_copy *copy)
{
	sk_u64 from = slice * SK_SLICE, bytes = copy->bytes, words = 0;
	SK_GLOBAL sk_u8 *dst = (SK_GLOBAL sk_u8 *)(copy->dst + from);
	sk_bytes src = (sk_bytes)(copy->src + from);

	if (from >= bytes)
		return;
	bytes = bytes - from < SK_SLICE ? bytes - from : SK_SLICE;
	if (!((copy->dst | copy->src) % 8))
		words = bytes / 8;
	sk_copy_words((SK_GLOBAL sk_word *)dst, (SK_GLOBAL const sk_word *)src,
		      thread, words, threads);
	for (sk_u64 i = words * 8 + thread; i < bytes; i += threads)
		dst[i] = src[i];
}

/* By the widest words that both ends and the length allow. */
static void sk_copy_element(sk_u64 dst, sk_u64 src, sk_u64 run)
{
	sk_u64 low = dst | src | run;

	if (!(low % 8))
		for (sk_u64 i = 0; i < run; i += 8)
			*(SK_GLOBAL sk_word *)(dst + i) =
				*(SK_GLOBAL const sk_word *)(src + i);
	else if (!(low % 4))
		for (sk_u64 i = 0; i < run; i += 4)
			*(SK_GLOBAL sk_quad *)(dst + i) =
				*(SK_GLOBAL const sk_quad *)(src + i);
	else if (!(low % 2))
		for (sk_u64 i = 0; i < run; i += 2)
			*(SK_GLOBAL sk_half *)(dst + i) =
				*(SK_GLOBAL const sk_half *)(src + i);
	else
		for (sk_u64 i = 0; i < run; i++)
			*(SK_GLOBAL sk_u8 *)(dst + i) =
				*(SK_GLOBAL const sk_u8 *)(src + i);
}

static sk_u64 sk_tiles_along(sk_u64 size)
{
	return (size + SK_TILE - 1) / SK_TILE;
}

static sk_u64 sk_box_tiles(const struct sk_kernel_box *box)
{
	sk_u64 n = sk_tiles_along(box->size[0]) *
		   sk_tiles_along(box->size[1]);

	SK_NO_UNROLL
	for (sk_u32 d = 2; d < SK_BOX_DIMS; d++)
		n *= box->size[d];
	return n;
}

/* Of @threads that copy one tile of a box: whatever order the two sides have,
 * what the caches hold of a tile is used before it goes. */
static void sk_kernel_tile(sk_u64 thread, sk_u64 threads, sk_u64 tile,
			   const struct sk_kernel_box *box)
{
	sk_u64 dst = box->dst, src = box->src, a, b;

	a = tile % sk_tiles_along(box->size[0]) * SK_TILE;
	tile /= sk_tiles_along(box->size[0]);
	b = tile % sk_tiles_along(box->size[1]) * SK_TILE;
	tile /= sk_tiles_along(box->size[1]);
	SK_NO_UNROLL
	for (sk_u32 d = 2; d < SK_BOX_DIMS && tile; d++) {
		dst += tile % box->size[d] * box->dst_stride[d];
		src += tile % box->size[d] * box->src_stride[d];
		tile /= box->size[d];
	}
	SK_NO_UNROLL
	for (sk_u64 i = thread; i < SK_TILE * SK_TILE; i += threads) {
		sk_u64 x = a + i % SK_TILE, y = b + i / SK_TILE;

		if (x < box->size[0] && y < box->size[1])
			sk_copy_element(dst + x * box->dst_stride[0] +
						y * box->dst_stride[1],
					src + x * box->src_stride[0] +
						y * box->src_stride[1],
					box->run);
	}
}

/* ---- the kernels, as a GPU begins them ---- */

#ifdef __OPENCL_C_VERSION__
static sk_u64 sk_group(void)
{
	return (sk_u64)__nvvm_read_ptx_sreg_ctaid_x();
}

static sk_u64 sk_groups(void)
{
	return (sk_u64)__nvvm_read_ptx_sreg_nctaid_x();
}

static sk_u64 sk_thread(void)
{
	return (sk_u64)__nvvm_read_ptx_sreg_tid_x();
}

static sk_u64 sk_threads(void)
{
	return (sk_u64)__nvvm_read_ptx_sreg_ntid_x();
}

__kernel void sk_parts(__global const struct sk_kernel_span *spans, ulong n,
		       __global ulong *parts, ulong most)
{
	sk_kernel_parts(sk_group() * sk_threads() + sk_thread(), spans, n,
			parts, most);
}

__kernel void sk_lanes(__global const struct sk_kernel_span *spans, ulong n,
		       __global ulong *sums, __global const ulong *parts,
		       ulong most)
{
	sk_kernel_lanes(sk_group() * sk_threads() + sk_thread(), spans, n,
			sums, parts, most);
}

__kernel void sk_merge(__global const struct sk_kernel_span *spans, ulong n,
		       __global const ulong *sums, __global ulong *ret)
{
	sk_kernel_merge(sk_group() * sk_threads() + sk_thread(), spans, n,
			sums, ret);
}

__kernel void sk_copies(__global const struct sk_kernel_copy *copies, ulong n,
			ulong slices)
{
	for (ulong i = sk_group(); i < n * slices; i += sk_groups())
		sk_kernel_copies(sk_thread(), sk_threads(), i % slices,
				 &copies[i / slices]);
}

__kernel void sk_box(struct sk_kernel_box box)
{
	for (ulong i = sk_group(); i < sk_box_tiles(&box); i += sk_groups())
		sk_kernel_tile(sk_thread(), sk_threads(), i, &box);
}
#endif

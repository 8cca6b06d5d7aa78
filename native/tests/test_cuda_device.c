/*
 * test_cuda_device.c - a CUDA device over a fake driver: passes against the CPU's bits, tokens, pinned ranges, errors.
 *
 * Usage: test_cuda_device [seed]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device.h"
#include "fake_cuda.h"
#include "pin.h"
#include "status.h"

#define VECTORS 48u
#define VECTOR_BYTES 4096u

static int failures;
static struct fake_kernel kernels[RR_DTYPE_COUNT][4];
static int context; /* any address */

static void expect(int condition, const char *what)
{
	if (!condition) {
		fprintf(stderr, "FAILED: %s\n", what);
		failures++;
	}
}

/* ---- the table ---- */

static uint32_t fill_entries(rr_cuda_entry *entries, char names[][48], const char *without)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < rr_cuda_want_count(); i++) {
		rr_cuda_want want;
		if (rr_cuda_want_at(i, &want) != RR_OK || (without && strcmp(want.name, without) == 0))
			continue;
		memcpy(names[count], want.name, sizeof(want.name));
		entries[count] = (rr_cuda_entry){.name = names[count], .address = fake_address(want.name)};
		count++;
	}
	return count;
}

static rr_status open_table(const char *without, rr_cuda **out)
{
	static char names[64][48];
	rr_cuda_entry entries[64];
	uint32_t count = fill_entries(entries, names, without);

	return rr_cuda_open(entries, count, out);
}

static void tables(void)
{
	rr_cuda_want want;
	char text[200];

	expect(rr_cuda_want_count() > 20 && rr_cuda_want_count() <= 64, "about 30 functions are wanted");
	expect(rr_cuda_want_at(rr_cuda_want_count(), &want) == RR_ERR_ARGUMENT, "beyond the last wanted function");
	for (uint32_t i = 0; i < rr_cuda_want_count(); i++) {
		rr_cuda *cuda = NULL;
		rr_cuda_want_at(i, &want);
		rr_status status = open_table(want.name, &cuda);
		snprintf(text, sizeof(text), "a table without %s", want.name);
		expect(status == (want.needed ? RR_ERR_UNSUPPORTED : RR_OK), text);
		expect(!want.needed || strstr(rr_error_here()->message, want.name), text);
		rr_cuda_close(cuda);
	}
}

static rr_device *open_device(rr_cuda **cuda)
{
	rr_device *device = NULL;

	fake.fail = NULL;
	expect(open_table(NULL, cuda) == RR_OK, "a whole table");
	rr_cuda_spec spec = {.cuda = *cuda, .context = &context, .ordinal = 3, .blocks_max = 7};
	expect(rr_device_open_cuda(&spec, &device) == RR_OK, "a device");
	for (int32_t t = 0; t < (int32_t)RR_DTYPE_COUNT; t++) {
		for (int32_t op = 0; op < 4; op++) {
			kernels[t][op] = (struct fake_kernel){(rr_dtype)t, (rr_redop)op};
			expect(rr_device_set_kernel(device, t, op, &kernels[t][op]) == RR_OK, "a kernel");
		}
	}
	return device;
}

static void close_device(rr_device *device, rr_cuda *cuda)
{
	expect(rr_device_close(device) == RR_OK, "a device closes");
	rr_cuda_close(cuda);
	expect(fake.depth == 0, "no context is left current");
}

/* ---- passes ---- */

/* Half of the vectors lie in GPU memory, half in memory of links. The host's own copies are for the CPU. */
struct vectors {
	struct rr_pin_range links;
	void *gpu;
	void *device[VECTORS];            /* as a combine names them */
	unsigned char *real[VECTORS];     /* where they lie */
	unsigned char host[VECTORS][VECTOR_BYTES];
};

static void make_vectors(rr_device *device, struct vectors *vectors)
{
	expect(rr_pin_room(&vectors->links, VECTORS / 2 * VECTOR_BYTES), "memory of links");
	expect(device->ops->alloc(device, VECTORS / 2 * VECTOR_BYTES, &vectors->gpu) == RR_OK, "memory of the GPU");
	for (uint32_t v = 0; v < VECTORS; v++) {
		uint64_t offset = (uint64_t)(v / 2) * VECTOR_BYTES;
		bool gpu = v % 2;
		vectors->device[v] = gpu ? (char *)vectors->gpu + offset : vectors->links.address + offset;
		vectors->real[v] = gpu ? (unsigned char *)fake_real((rr_cuda_ptr)(uintptr_t)vectors->gpu + offset, VECTOR_BYTES)
				       : (unsigned char *)vectors->links.address + offset;
	}
}

static void drop_vectors(rr_device *device, struct vectors *vectors)
{
	device->ops->free(device, vectors->gpu);
	rr_pin_drop(&vectors->links);
}

/* Small numbers without NaN, whatever the dtype; float32 where `wide`. */
static void fill(unsigned char *to, rr_dtype dtype, bool wide)
{
	for (uint32_t i = 0; i < VECTOR_BYTES / 8; i++) {
		float value = (float)((int32_t)fake_random(4001) - 2000) / 512.0f;
		if (wide || dtype == RR_FLOAT32)
			memcpy(to + i * 4, &value, 4);
		else if (dtype == RR_FLOAT64)
			memcpy(to + i * 8, &(double){value}, 8);
		else if (dtype == RR_FLOAT16)
			memcpy(to + i * 2, &(uint16_t){rr_float_to_half(value)}, 2);
		else if (dtype == RR_BFLOAT16)
			memcpy(to + i * 2, &(uint16_t){rr_float_to_bfloat(value)}, 2);
		else
			for (uint32_t b = 0; b < rr_dtype_bytes(dtype); b++)
				to[i * rr_dtype_bytes(dtype) + b] = (unsigned char)fake_random(256);
	}
}

static rr_status wait_for(rr_device *device, rr_token token)
{
	rr_status status;

	do
		status = device->ops->ready(device, token);
	while (status == RR_AGAIN);
	return status;
}

/* One random pass, on the GPU and on the CPU, with all its vectors compared afterwards. */
static void one_pass(rr_device *device, struct vectors *vectors, uint32_t number)
{
	rr_dtype dtype = (rr_dtype)fake_random(RR_DTYPE_COUNT);
	bool narrow = dtype == RR_FLOAT16 || dtype == RR_BFLOAT16;
	rr_redop redop = (rr_redop)fake_random(RR_REDOP_COUNT);
	uint32_t sources = 1 + fake_random(fake_random(4) ? 4 : 24), targets = 1 + fake_random(fake_random(4) ? 2 : 20);
	bool mixed = narrow && redop == RR_SUM && sources > 1 && fake_random(2);
	const void *src[VECTORS], *host_src[VECTORS];
	void *dst[VECTORS], *host_dst[VECTORS];
	struct rr_combine pass = {.dst = dst, .src = src, .dst_count = targets, .src_count = sources,
				  .count = 1 + fake_random(VECTOR_BYTES / 8), .wide = mixed && fake_random(2),
				  .wide_sources = mixed ? fake_random(1u << 16) & ((1ull << sources) - 1) : 0,
				  .post = fake_random(2), .factor = 0.3, .dtype = (uint8_t)dtype, .redop = (uint8_t)redop};
	uint32_t alias = fake_random(4) || pass.wide || (pass.wide_sources & 1) ? VECTORS : 0; /* the last destination is source 0 */
	rr_token token = 0;
	char text[160];

	for (uint32_t v = 0; v < VECTORS; v++) {
		fill(vectors->host[v], dtype, v < sources && pass.wide_sources >> v & 1);
		memcpy(vectors->real[v], vectors->host[v], VECTOR_BYTES);
	}
	for (uint32_t s = 0; s < sources; s++) {
		src[s] = vectors->device[s];
		host_src[s] = vectors->host[s];
	}
	for (uint32_t d = 0; d < targets; d++) {
		uint32_t at = d + 1 == targets && alias == 0 ? 0 : 24 + d;
		dst[d] = vectors->device[at];
		host_dst[d] = vectors->host[at];
	}
	expect(device->ops->combine(device, NULL, &pass, &token) == RR_OK, "a pass is started");
	expect(wait_for(device, token) == RR_OK, "a pass ends");
	struct rr_combine same = pass;
	same.src = host_src;
	same.dst = host_dst;
	(pass.wide || pass.wide_sources ? rr_combine_lookup_wide(dtype, redop) : rr_combine_lookup(dtype, redop, RR_SIMD_SCALAR))(&same);
	snprintf(text, sizeof(text), "pass %u: %s of %s, %u sources (wide %llx), %u destinations (wide %d), %zu elements, post %d", number,
		 rr_redop_name(redop), rr_dtype_name(dtype), sources, (unsigned long long)pass.wide_sources, targets, pass.wide,
		 pass.count, pass.post);
	for (uint32_t v = 0; v < VECTORS; v++)
		if (memcmp(vectors->real[v], vectors->host[v], VECTOR_BYTES) != 0) {
			expect(0, text);
			return;
		}
}

static void passes(void)
{
	struct vectors *vectors = calloc(1, sizeof(*vectors));
	rr_device_facts facts;
	rr_cuda *cuda;
	rr_device *device = open_device(&cuda);

	make_vectors(device, vectors);
	for (uint32_t number = 0; number < 3000; number++)
		one_pass(device, vectors, number);
	rr_device_facts_of(device, &facts);
	expect(facts.pinned_ranges == 1 && facts.pinned_bytes == VECTORS / 2 * VECTOR_BYTES && fake.registered == 1,
	       "a range is pinned once");
	expect(facts.launches == fake.calls[1] && facts.copies == fake.calls[0] && facts.copies > 0, "launches and copies are counted");
	expect(facts.events == 3000, "one event a pass");
	drop_vectors(device, vectors);
	rr_device_facts_of(device, &facts);
	expect(fake.unregistered == 1 && facts.pinned_ranges == 0 && facts.pinned_bytes == 0, "unpinned before it is unmapped");
	close_device(device, cuda);
	expect(fake.gpu_count == 0 && fake.pinned_count == 0, "nothing is left in the driver");
	free(vectors);
}

/* ---- tokens ---- */

/* A thousand passes under way: more than there are events. */
static void tokens(void)
{
	struct vectors *vectors = calloc(1, sizeof(*vectors));
	rr_cuda *cuda;
	rr_device *device = open_device(&cuda);
	rr_token given[1000];

	make_vectors(device, vectors);
	fake.lazy = true;
	for (uint32_t n = 0; n < 1000; n++) {
		const void *src[2] = {vectors->device[0], vectors->device[1]};
		struct rr_combine pass = {.dst = &vectors->device[2], .src = src, .dst_count = 1, .src_count = 2, .count = 4,
					  .dtype = RR_INT32, .redop = RR_SUM};
		expect(device->ops->combine(device, NULL, &pass, &given[n]) == RR_OK && given[n] == n + 1, "tokens are numbers");
	}
	expect(device->ops->ready(device, 0) == RR_OK, "token 0 is ready");
	expect(device->ops->ready(device, given[0]) == RR_AGAIN && device->ops->ready(device, given[999]) == RR_AGAIN, "nothing has run");
	fake_run(999);
	expect(device->ops->ready(device, given[999]) == RR_AGAIN, "the last has not run");
	expect(device->ops->ready(device, given[998]) == RR_OK, "the last but one has");
	uint64_t asked = fake.calls[2];
	for (uint32_t n = 0; n < 998; n++)
		expect(device->ops->ready(device, given[n]) == RR_OK, "passes end in order");
	expect(fake.calls[2] == asked, "what is known is not asked again");
	fake_run(1);
	expect(device->ops->ready(device, given[999]) == RR_OK, "the last has run");
	expect(device->ops->settle(device), "nothing is under way");
	fake.lazy = false;
	expect(rr_device_after(device, NULL) == RR_OK && fake.issued > fake.done, "a producer's stream is waited for");
	expect(device->ops->settle(device), "and then nothing is under way");
	drop_vectors(device, vectors);
	close_device(device, cuda);
	free(vectors);
}

/* ---- errors ---- */

static void one_error(const char *call, uint64_t after)
{
	struct vectors *vectors = calloc(1, sizeof(*vectors));
	rr_cuda *cuda;
	rr_device *device = open_device(&cuda);
	rr_status status = RR_OK;
	rr_token token = 0;
	char text[160];

	make_vectors(device, vectors);
	fake.fail = call;
	fake.fail_in = after;
	for (uint32_t n = 0; n < 50 && status >= 0; n++) {
		const void *src[2] = {vectors->device[0], vectors->device[1]};
		struct rr_combine pass = {.dst = &vectors->device[2], .src = src, .dst_count = 1, .src_count = n % 2 ? 2 : 1,
					  .count = 4, .dtype = RR_INT32, .redop = RR_SUM};
		status = device->ops->combine(device, NULL, &pass, &token);
		if (status >= 0)
			status = wait_for(device, token);
	}
	snprintf(text, sizeof(text), "on GPU 3: %s failed: CUDA_ERROR_ILLEGAL_ADDRESS (700)", call);
	expect(status == RR_ERR_DEVICE && strcmp(rr_error_here()->message, text) == 0, text);
	fake.fail = NULL;
	rr_fail(RR_ERR_TIMEOUT, "another error");
	expect(device->ops->settle(device) && strcmp(rr_error_here()->message, "another error") == 0, "settling keeps the caller's error");
	expect(device->ops->ready(device, token + 1) == RR_ERR_DEVICE && strcmp(rr_error_here()->message, text) == 0, "an error stays");
	drop_vectors(device, vectors);
	close_device(device, cuda);
	expect(fake.gpu_count == 0 && fake.pinned_count == 0, "nothing is left in the driver after an error");
	free(vectors);
}

static void errors(void)
{
	rr_cuda *cuda;
	rr_device *device = open_device(&cuda);

	expect(rr_device_set_kernel(device, 99, 0, NULL) == RR_ERR_ARGUMENT, "no such dtype");
	expect(device->ops->serves(device, RR_INT8, RR_AVG) == RR_OK, "avg is served by sum");
	rr_device_set_kernel(device, RR_INT8, RR_SUM, NULL);
	expect(device->ops->serves(device, RR_INT8, RR_AVG) == RR_ERR_ARGUMENT && strstr(rr_error_here()->message, "rr_sum_int8"),
	       "a missing kernel is named");
	rr_cuda_spec spec = {.cuda = cuda, .context = &context};
	rr_device *other = NULL;
	fake.fail = "cuEventCreate";
	fake.fail_in = 100;
	expect(rr_device_open_cuda(&spec, &other) == RR_ERR_DEVICE && strstr(rr_error_here()->message, "cuEventCreate failed"),
	       "a device that cannot be made");
	fake.fail = NULL;
	spec.context = NULL;
	expect(rr_device_open_cuda(&spec, &other) == RR_ERR_ARGUMENT && strstr(rr_error_here()->message, "context is NULL"), "no context");
	close_device(device, cuda);
	one_error("cuLaunchKernel", 7);
	one_error("cuMemcpyAsync", 3);
	one_error("cuEventRecord", 11);
	one_error("cuEventQuery", 2);
	one_error("cuMemHostRegister", 0);
}

int main(int argc, char **argv)
{
	fake.random = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : (uint32_t)time(NULL);
	printf("seed %u\n", fake.random);
	tables();
	passes();
	tokens();
	errors();
	printf("%s\n", failures ? "FAILED" : "ok");
	return failures ? 1 : 0;
}

/*
 * module_ptx.c - the text of a PTX program: its kernels' names and parameters.
 *
 *   .version 9.0  .target sm_90
 *   .visible .entry NAME(
 *     .param .align 8 .b8 NAME_param_0[176],
 *     .param .u64 NAME_param_1
 *   )
 *   .maxntid 512, 1, 1
 */
#include "module.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define BLANKS " \t\r\n"

/* Driver 13.0 takes PTX up to 9.0, 12.x up to 8.x: the major version is less by this. */
#define DRIVER_MINUS_PTX 4

/* Behind `word` and blanks, NULL where the text begins otherwise. */
static const char *skip(const char *text, const char *word)
{
	size_t bytes = strlen(word);

	if (strncmp(text, word, bytes) != 0)
		return NULL;
	return text + bytes + strspn(text + bytes, BLANKS);
}

static size_t name_bytes(const char *text)
{
	size_t bytes = 0;

	while (isalnum((unsigned char)text[bytes]) || text[bytes] == '_' || text[bytes] == '$')
		bytes++;
	return bytes;
}

/* The first `word` that is not within another; NULL: there is none. */
static const char *find_word(const char *text, const char *word)
{
	size_t bytes = strlen(word);

	for (text = strstr(text, word); text; text = strstr(text + bytes, word))
		if (strchr(BLANKS, text[bytes]) && text[bytes])
			return text + bytes + strspn(text + bytes, BLANKS);
	return NULL;
}

/* ".param .align 8 .b8 NAME[176]" or ".param .u64 NAME". NULL: it is not; otherwise the text behind it. */
static const char *read_parameter(const char *text, uint32_t end, struct cs_parameter *parameter)
{
	unsigned long align = 0, count = 1, bits;
	const char *next;
	char *rest;

	text = skip(text, ".param");
	if (!text)
		return NULL;
	next = skip(text, ".align");
	if (next) {
		align = strtoul(next, &rest, 10);
		text = rest + strspn(rest, BLANKS);
	}
	if (text[0] != '.' || !strchr("bsuf", text[1]) || !text[1])
		return NULL;
	bits = strtoul(text + 2, &rest, 10);
	if (bits != 8 && bits != 16 && bits != 32 && bits != 64)
		return NULL;
	text = rest + strspn(rest, BLANKS);
	text += name_bytes(text);
	if (*text == '[') {
		count = strtoul(text + 1, &rest, 10);
		text = *rest == ']' ? rest + 1 : rest;
	}
	if (align < bits / 8)
		align = bits / 8;
	parameter->offset = (uint32_t)((end + align - 1) / align * align);
	parameter->bytes = (uint32_t)(count * bits / 8);
	return text + strspn(text, BLANKS);
}

/* From the kernel's name on. */
static CUresult read_entry(const char *text, struct cs_image_kernel **kernels)
{
	struct cs_image_kernel *kernel = cs_image_add(kernels, text, name_bytes(text));
	const char *body, *bounds;
	uint32_t end = 0;

	if (!kernel)
		return CUDA_ERROR_OUT_OF_MEMORY;
	text += name_bytes(text);
	text += strspn(text, BLANKS);
	for (char before = '('; *text == before && kernel->parameter_count < CS_PARAMETERS_MAX; before = ',') {
		struct cs_parameter *parameter = &kernel->parameters[kernel->parameter_count];

		text += 1 + strspn(text + 1, BLANKS);
		if (*text == ')')
			break;
		text = read_parameter(text, end, parameter);
		if (!text)
			return CUDA_ERROR_INVALID_PTX;
		end = parameter->offset + parameter->bytes;
		kernel->parameter_count++;
	}
	if (*text != ')' && *text != '{')
		return CUDA_ERROR_INVALID_PTX;
	body = strchr(text, '{');
	bounds = find_word(text, ".maxntid");
	if (body && bounds && bounds < body)
		kernel->threads_max = (uint32_t)strtoul(bounds, NULL, 10); /* of x; the others are 1 in what we compile */
	return CUDA_SUCCESS;
}

CUresult cs_ptx_read(const char *image, int device, struct cs_image_kernel **kernels)
{
	const char *version = find_word(image, ".version"), *target = find_word(image, ".target");
	CUresult result = CUDA_SUCCESS;
	int major, minor = 0;

	if (!version || !target || !skip(target, "sm_"))
		return CUDA_ERROR_INVALID_IMAGE;
	major = atoi(version);
	if (strchr(version, '.'))
		minor = atoi(strchr(version, '.') + 1);
	if (major + DRIVER_MINUS_PTX > cs_settings.driver_version / 1000 ||
	    (major + DRIVER_MINUS_PTX == cs_settings.driver_version / 1000 &&
	     minor > cs_settings.driver_version % 1000 / 10)) {
		cs_say("a module is PTX %d.%d, newer than the driver", major, minor);
		return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
	}
	if (!cs_runs_on(device, (unsigned int)atoi(skip(target, "sm_")), false)) {
		cs_say("a module's PTX is for sm_%d, which device %d does not run", atoi(skip(target, "sm_")), device);
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	}
	for (const char *entry = find_word(image, ".entry"); entry && result == CUDA_SUCCESS;
	     entry = find_word(entry, ".entry"))
		result = read_entry(entry, kernels);
	return result;
}

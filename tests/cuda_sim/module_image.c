/*
 * module_image.c - images of modules. A cubin is an ELF file: section .text.<kernel> has a kernel's code and
 * .nv.info.<kernel> records of it, {format, attribute, 16 bits} and, in format 4, as many bytes as the 16 bits say:
 *
 *   0x17  a parameter: index (32 bits), ordinal (16), offset (16), and a word with its size from bit 18 on
 *   0x05  the most threads of a block: x, y, z (32 bits each)
 */
#include "module.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

#define EM_CUDA_NUMBER      190
#define ABI_WITH_SM_BESIDE  8 /* from here on the architecture is in bits 8 to 15 of e_flags, before in 0 to 7 */
#define RECORD_WITH_BYTES   4
#define RECORD_PARAMETER    0x17
#define RECORD_THREADS_MAX  0x05
#define FATBIN_MAGIC        0xba55ed50u

struct cs_image_kernel *cs_image_add(struct cs_image_kernel **kernels, const char *name, size_t name_bytes)
{
	struct cs_image_kernel *kernel = name_bytes < CS_NAME_MAX ? calloc(1, sizeof(*kernel)) : NULL;

	if (!kernel)
		return NULL;
	memcpy(kernel->name, name, name_bytes);
	kernel->next = *kernels;
	*kernels = kernel;
	return kernel;
}

void cs_image_free(struct cs_image_kernel *kernels)
{
	while (kernels) {
		struct cs_image_kernel *next = kernels->next;

		free(kernels);
		kernels = next;
	}
}

bool cs_runs_on(int device, unsigned int architecture, bool machine_code)
{
	unsigned int own = 10 * cs_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) +
			   cs_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);

	return architecture <= own && (!machine_code || architecture / 10 == own / 10);
}

/* One parameter of a kernel whose parameters come in any order. False: there is no room for it. */
static bool read_parameter(struct cs_image_kernel *kernel, const unsigned char *record)
{
	uint16_t ordinal, offset;
	uint32_t size;

	memcpy(&ordinal, record + 4, sizeof(ordinal));
	memcpy(&offset, record + 6, sizeof(offset));
	memcpy(&size, record + 8, sizeof(size));
	if (ordinal >= CS_PARAMETERS_MAX)
		return false;
	kernel->parameters[ordinal] = (struct cs_parameter){ offset, size >> 18 };
	if (ordinal >= kernel->parameter_count)
		kernel->parameter_count = ordinal + 1u;
	return true;
}

static bool read_records(struct cs_image_kernel *kernel, const unsigned char *at, const unsigned char *end)
{
	while (end - at >= 4) {
		uint16_t bytes = 0;

		if (at[0] == RECORD_WITH_BYTES)
			memcpy(&bytes, at + 2, sizeof(bytes));
		if (end - at < 4 + bytes)
			return false;
		if (at[0] == RECORD_WITH_BYTES && at[1] == RECORD_PARAMETER &&
		    (bytes < 12 || !read_parameter(kernel, at + 4)))
			return false;
		if (at[0] == RECORD_WITH_BYTES && at[1] == RECORD_THREADS_MAX && bytes >= 12) {
			uint32_t threads[3];

			memcpy(threads, at + 4, sizeof(threads));
			kernel->threads_max = threads[0] * threads[1] * threads[2];
		}
		at += 4 + bytes;
	}
	return at == end;
}

/* The part of a section's name behind `prefix`, NULL where it begins otherwise. */
static const char *behind(const char *name, const char *prefix)
{
	size_t bytes = strlen(prefix);

	return strncmp(name, prefix, bytes) == 0 ? name + bytes : NULL;
}

static const Elf64_Shdr *section_named(const Elf64_Shdr *sections, unsigned int count, const char *names,
				       const char *prefix, const char *kernel)
{
	for (unsigned int i = 0; i < count; i++) {
		const char *name = behind(names + sections[i].sh_name, prefix);

		if (name && strcmp(name, kernel) == 0)
			return &sections[i];
	}
	return NULL;
}

static CUresult read_kernel(const unsigned char *image, const Elf64_Shdr *info, const char *name,
			    struct cs_image_kernel **kernels)
{
	struct cs_image_kernel *kernel = cs_image_add(kernels, name, strlen(name));

	if (!kernel)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!read_records(kernel, image + info->sh_offset, image + info->sh_offset + info->sh_size)) {
		cs_say("a module's image: the records of kernel %s make no sense", name);
		return CUDA_ERROR_INVALID_IMAGE;
	}
	return CUDA_SUCCESS;
}

CUresult cs_cubin_read(const unsigned char *image, int device, struct cs_image_kernel **kernels)
{
	Elf64_Ehdr header;
	Elf64_Shdr *sections;
	const char *names;
	CUresult result = CUDA_SUCCESS;
	unsigned int architecture;

	memcpy(&header, image, sizeof(header));
	if (header.e_machine != EM_CUDA_NUMBER || header.e_ident[EI_CLASS] != ELFCLASS64 ||
	    header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shstrndx >= header.e_shnum)
		return CUDA_ERROR_INVALID_IMAGE;
	architecture = header.e_ident[EI_ABIVERSION] >= ABI_WITH_SM_BESIDE ? header.e_flags >> 8 & 0xff
									   : header.e_flags & 0xff;
	if (!cs_runs_on(device, architecture, true)) {
		cs_say("a module's image is for sm_%u, which device %d does not run", architecture, device);
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	}
	sections = malloc(header.e_shnum * sizeof(*sections));
	if (!sections)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(sections, image + header.e_shoff, header.e_shnum * sizeof(*sections));
	names = (const char *)image + sections[header.e_shstrndx].sh_offset;
	for (unsigned int i = 0; i < header.e_shnum && result == CUDA_SUCCESS; i++) {
		const char *name = behind(names + sections[i].sh_name, ".nv.info.");

		if (name && section_named(sections, header.e_shnum, names, ".text.", name))
			result = read_kernel(image, &sections[i], name, kernels);
	}
	free(sections);
	return result;
}

CUresult cs_image_read(const void *image, int device, struct cs_image_kernel **kernels)
{
	const unsigned char *bytes = image;
	uint32_t magic;
	CUresult result;

	memcpy(&magic, image, sizeof(magic));
	if (memcmp(bytes, ELFMAG, SELFMAG) == 0)
		result = cs_cubin_read(bytes, device, kernels);
	else if (magic == FATBIN_MAGIC || bytes[0] >= 0x80 || bytes[0] == 0)
		result = CUDA_ERROR_INVALID_IMAGE; /* no text */
	else
		result = cs_ptx_read(image, device, kernels);
	if (result != CUDA_SUCCESS) {
		cs_image_free(*kernels);
		*kernels = NULL;
	}
	return result;
}

// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/*
 * /dev/gpu-memory: the part of a GPU's driver that build/dmem.sh needs. It registers the memory of GPUs with the
 * controller dmem, by the names that NVIDIA's driver gives it, and charges the cgroup of whoever asks.
 *
 *   echo "GPU BYTES" >&3   charges; EAGAIN at a cgroup's limit, EINVAL for another text
 *   exec 3>&-              gives back what was charged through this descriptor
 *
 * There is no memory behind it.
 */
#include <linux/cgroup_dmem.h>
#include <linux/fs.h>
#include <linux/list.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#define GPUS 2
#define BYTES_OF_A_GPU (16ULL << 30)

static struct dmem_cgroup_region *regions[GPUS];

struct charge {
	struct list_head of_file;
	struct dmem_cgroup_pool_state *pool;
	u64 bytes;
};

struct opened {
	struct mutex lock;
	struct list_head charges;
};

static int gpu_memory_open(struct inode *inode, struct file *file)
{
	struct opened *opened = kmalloc(sizeof(*opened), GFP_KERNEL);

	if (!opened)
		return -ENOMEM;
	mutex_init(&opened->lock);
	INIT_LIST_HEAD(&opened->charges);
	file->private_data = opened;
	return 0;
}

static ssize_t gpu_memory_write(struct file *file, const char __user *from, size_t size, loff_t *at)
{
	struct opened *opened = file->private_data;
	struct charge *charge;
	char text[64];
	unsigned int gpu;
	u64 bytes;
	int error;

	if (size >= sizeof(text))
		return -EINVAL;
	if (copy_from_user(text, from, size))
		return -EFAULT;
	text[size] = 0;
	if (sscanf(text, "%u %llu", &gpu, &bytes) != 2 || gpu >= GPUS)
		return -EINVAL;
	charge = kmalloc(sizeof(*charge), GFP_KERNEL);
	if (!charge)
		return -ENOMEM;
	charge->bytes = bytes;
	error = dmem_cgroup_try_charge(regions[gpu], bytes, &charge->pool, NULL);
	if (error) {
		kfree(charge);
		return error;
	}
	mutex_lock(&opened->lock);
	list_add(&charge->of_file, &opened->charges);
	mutex_unlock(&opened->lock);
	return size;
}

static int gpu_memory_release(struct inode *inode, struct file *file)
{
	struct opened *opened = file->private_data;
	struct charge *charge, *next;

	list_for_each_entry_safe(charge, next, &opened->charges, of_file) {
		dmem_cgroup_uncharge(charge->pool, charge->bytes);
		kfree(charge);
	}
	kfree(opened);
	return 0;
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.open = gpu_memory_open,
	.write = gpu_memory_write,
	.release = gpu_memory_release,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "gpu-memory",
	.mode = 0666,
	.fops = &operations,
};

static int __init gpu_memory_init(void)
{
	static const struct dmem_cgroup_init size = { .size = BYTES_OF_A_GPU };
	unsigned int gpu;

	for (gpu = 0; gpu < GPUS; gpu++) {
		regions[gpu] = dmem_cgroup_register_region(&size, "nvidia/00000000:%02x:00.0/vidmem", gpu + 1);
		if (IS_ERR(regions[gpu]))
			return PTR_ERR(regions[gpu]);
	}
	return misc_register(&device);
}
device_initcall(gpu_memory_init);
